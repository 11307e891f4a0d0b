//! What the launcher's host and a lender's host say to each other: frames that nobody else can make,
//! read or repeat. No sockets here.
//!
//! Each end sends 32 random bytes. From these and the run's key, HKDF-SHA256 (RFC 5869) makes one key
//! for each direction. Every frame is sealed with ChaCha20-Poly1305 (RFC 8439); its number is the
//! nonce. An end that has opened one frame knows that the other has the key, and is no recording.

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom, SystemRandom};

/// What a connection begins with, in both directions.
const MAGIC: &[u8; 13] = b"muster-rsh/1\n";
const RANDOM: usize = 32;

/// The length of the first bytes of each end.
pub(crate) const HELLO: usize = MAGIC.len() + RANDOM;

/// The most content of a frame: a pipe's buffer, and a command as long as Linux takes it in one word.
pub(crate) const MAX: usize = 128 << 10;

/// The kinds of frames that either end sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// To the lender: a command for `/bin/sh -c`.
    Run = 1,
    /// A part of its standard input. No content: the end.
    Input = 2,
    /// A signal for it, by its number.
    Signal = 3,
    /// Are you there?
    Ping = 4,
    /// From the lender: yes.
    Here = 5,
    /// A part of the command's standard output, or of its standard error.
    Output = 6,
    Errors = 7,
    /// The command has ended with this code, as a shell tells it. This is the last frame.
    Exited = 8,
    /// The command cannot be started, and why. This is the last frame.
    Refused = 9,
}

impl Kind {
    const ALL: [Kind; 9] = [
        Kind::Run,
        Kind::Input,
        Kind::Signal,
        Kind::Ping,
        Kind::Here,
        Kind::Output,
        Kind::Errors,
        Kind::Exited,
        Kind::Refused,
    ];
}

/// The first bytes of this end.
pub(crate) fn hello() -> Result<[u8; HELLO], String> {
    let mut hello = [0; HELLO];
    hello[..MAGIC.len()].copy_from_slice(MAGIC);
    let filled = SystemRandom::new().fill(&mut hello[MAGIC.len()..]);
    filled.map_err(|_| "no random numbers".to_owned())?;
    Ok(hello)
}

/// Which end this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Launcher,
    Lender,
}

/// Both directions of one connection, after both hellos.
pub(crate) fn open(
    end: End,
    key: &str,
    launcher: &[u8; HELLO],
    lender: &[u8; HELLO],
) -> Result<(Sealer, Opener), String> {
    if [launcher, lender]
        .iter()
        .any(|hello| !hello.starts_with(MAGIC))
    {
        return Err("it speaks another protocol".into());
    }
    // Without a key anybody could make the frames.
    if key.is_empty() {
        return Err("there is no key".into());
    }
    let salt = [launcher.as_slice(), lender.as_slice()].concat();
    let from = |direction: &[u8]| -> Result<LessSafeKey, String> {
        let mut key_bytes = [0; 32];
        let made = Salt::new(HKDF_SHA256, &salt)
            .extract(key.as_bytes())
            .expand(&[direction], HKDF_SHA256)
            .and_then(|made| made.fill(&mut key_bytes));
        let made = made.and_then(|()| UnboundKey::new(&CHACHA20_POLY1305, &key_bytes));
        made.map(LessSafeKey::new)
            .map_err(|_| "the keys of a connection cannot be made".to_owned())
    };
    let (launchers, lenders) = (from(b"from the launcher")?, from(b"from the lender")?);
    let (own, theirs) = match end {
        End::Launcher => (launchers, lenders),
        End::Lender => (lenders, launchers),
    };
    let sealer = Sealer { key: own, next: 0 };
    let opener = Opener {
        key: theirs,
        next: 0,
        buffer: Vec::new(),
    };
    Ok((sealer, opener))
}

fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

pub(crate) struct Sealer {
    key: LessSafeKey,
    next: u64,
}

impl Sealer {
    /// A frame: the length of what is sealed, then that.
    pub(crate) fn seal(&mut self, kind: Kind, content: &[u8]) -> Vec<u8> {
        debug_assert!(content.len() <= MAX);
        let mut sealed = Vec::with_capacity(content.len() + 64);
        sealed.push(kind as u8);
        sealed.extend_from_slice(content);
        let nonce = nonce(self.next);
        self.next += 1;
        self.key
            .seal_in_place_append_tag(nonce, Aad::empty(), &mut sealed)
            .expect("a frame is far below the cipher's limit of 256 GiB");
        [&(sealed.len() as u32).to_be_bytes(), sealed.as_slice()].concat()
    }
}

pub(crate) struct Opener {
    key: LessSafeKey,
    next: u64,
    buffer: Vec<u8>,
}

impl Opener {
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame. After an error the connection is of no use.
    pub(crate) fn next(&mut self) -> Result<Option<(Kind, Vec<u8>)>, &'static str> {
        let Some((length, rest)) = self.buffer.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length) as usize;
        if length > 1 + MAX + CHACHA20_POLY1305.tag_len() {
            return Err("a frame is too long");
        }
        if rest.len() < length {
            return Ok(None);
        }
        let mut sealed: Vec<u8> = self.buffer.drain(..4 + length).skip(4).collect();
        let nonce = nonce(self.next);
        self.next += 1;
        let opened = self.key.open_in_place(nonce, Aad::empty(), &mut sealed);
        let opened = opened.map_err(|_| "the other end does not have the key of this run")?;
        let (kind, content) = opened.split_first().ok_or("a frame is empty")?;
        let kind = Kind::ALL.into_iter().find(|known| *known as u8 == *kind);
        Ok(Some((
            kind.ok_or("a frame of an unknown kind")?,
            content.to_vec(),
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(keys: [&str; 2]) -> [(Sealer, Opener); 2] {
        let hellos = [hello().unwrap(), hello().unwrap()];
        [(End::Launcher, keys[0]), (End::Lender, keys[1])]
            .map(|(end, key)| open(end, key, &hellos[0], &hellos[1]).unwrap())
    }

    #[test]
    fn frames_come_whole_and_in_order_however_they_are_cut() {
        let [(mut launcher, _), (_, mut lender)] = pair(["k", "k"]);
        let said = [(Kind::Run, b"echo".to_vec()), (Kind::Input, Vec::new())];
        let bytes: Vec<u8> = said
            .iter()
            .flat_map(|(kind, content)| launcher.seal(*kind, content))
            .collect();
        let mut heard = Vec::new();
        for byte in bytes {
            lender.feed(&[byte]);
            heard.extend(lender.next().unwrap());
        }
        assert_eq!(heard, said);
    }

    #[test]
    fn another_key_a_changed_byte_and_a_repeated_frame_are_not_opened() {
        let [(mut launcher, _), (_, mut lender)] = pair(["k", "other"]);
        lender.feed(&launcher.seal(Kind::Ping, b""));
        assert!(lender.next().is_err(), "another key");

        let [(mut launcher, _), (_, mut lender)] = pair(["k", "k"]);
        let mut changed = launcher.seal(Kind::Run, b"echo");
        changed[6] ^= 1;
        lender.feed(&changed);
        assert!(lender.next().is_err(), "a changed byte");

        let [(mut launcher, mut own), (_, mut lender)] = pair(["k", "k"]);
        let ping = launcher.seal(Kind::Ping, b"");
        lender.feed(&ping);
        assert_eq!(lender.next(), Ok(Some((Kind::Ping, Vec::new()))));
        lender.feed(&ping);
        assert!(lender.next().is_err(), "the same frame again");
        own.feed(&ping);
        assert!(own.next().is_err(), "a frame sent back to its sender");
    }

    #[test]
    fn a_recording_is_of_no_use_for_another_connection() {
        let [launchers, lenders, later] = [(); 3].map(|()| hello().unwrap());
        let (mut launcher, _) = open(End::Launcher, "k", &launchers, &lenders).unwrap();
        let (_, mut lender) = open(End::Lender, "k", &launchers, &later).unwrap();
        lender.feed(&launcher.seal(Kind::Run, b"rm -rf /"));
        assert!(lender.next().is_err());
    }

    #[test]
    fn a_length_that_nobody_means_and_an_empty_key_are_refused() {
        let [_, (_, mut lender)] = pair(["k", "k"]);
        lender.feed(&u32::MAX.to_be_bytes());
        assert_eq!(lender.next(), Err("a frame is too long"));
        let hello = hello().unwrap();
        assert!(open(End::Lender, "", &hello, &hello).is_err());
        assert!(open(End::Lender, "k", &[b'x'; HELLO], &hello).is_err());
    }
}
