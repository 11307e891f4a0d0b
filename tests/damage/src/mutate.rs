//! Small damages to valid inputs. The same seed gives the same damages.

/// Xorshift (Marsaglia 2003).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Any seed but 0 will do. 0 counts as 1.
    pub fn new(seed: u64) -> Dice {
        Dice(seed.max(1))
    }

    pub fn below(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        if sides == 0 {
            0
        } else {
            (self.0 % sides as u64) as usize
        }
    }
}

/// Bytes that mean something in some format: ends of ranges, lengths, quotes, newlines.
const LOADED: [u8; 16] = [
    0, 1, 0x7f, 0x80, 0xff, b'\n', b'"', b'\\', b'{', b'}', b'[', b'-', b'0', b'9', b':', b' ',
];
/// Numbers at the ends of the ranges of types, as text.
const EXTREMES: [&str; 8] = [
    "0",
    "-1",
    "255",
    "65536",
    "4294967296",
    "9223372036854775808",
    "18446744073709551616",
    "1e400",
];
/// The longest input that is made. Longer ones only repeat what a shorter one shows.
const LONGEST: usize = 16 << 10;

/// One to four damages, sometimes with a piece of another input.
pub fn mutate(dice: &mut Dice, input: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=dice.below(4) {
        damage(dice, &mut bytes, other);
    }
    bytes.truncate(LONGEST);
    bytes
}

fn damage(dice: &mut Dice, bytes: &mut Vec<u8>, other: &[u8]) {
    let at = dice.below(bytes.len());
    let end = at + dice.below(bytes.len().saturating_sub(at).min(64) + 1);
    match dice.below(9) {
        0 if !bytes.is_empty() => bytes[at] ^= 1 << dice.below(8),
        1 if !bytes.is_empty() => bytes[at] = LOADED[dice.below(LOADED.len())],
        2 => bytes.truncate(at),
        3 => drop(bytes.drain(at..end)),
        4 => bytes.insert(at, LOADED[dice.below(LOADED.len())]),
        5 => {
            let copy = bytes[at..end].to_vec();
            drop(bytes.splice(at..at, copy));
        }
        6 => {
            let from = dice.below(other.len());
            let piece = &other[from..from
                + dice
                    .below(other.len() - from.min(other.len()) + 1)
                    .min(other.len() - from)];
            drop(bytes.splice(at..end, piece.iter().copied()));
        }
        7 => {
            let Some(start) = bytes[at..]
                .iter()
                .position(u8::is_ascii_digit)
                .map(|found| at + found)
            else {
                return;
            };
            let digits = bytes[start..]
                .iter()
                .take_while(|byte| byte.is_ascii_digit())
                .count();
            drop(bytes.splice(
                start..start + digits,
                EXTREMES[dice.below(EXTREMES.len())].bytes(),
            ));
        }
        _ => bytes.extend_from_slice(&other[..dice.below(other.len().min(256) + 1)]),
    }
}
