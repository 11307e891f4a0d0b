//! `exits.jsonl`: one line per ended process, `<crc32 of the JSON, 8 hex digits> <JSON>`. A line is
//! appended and fsynced before anybody is told.
//!
//! A crash may leave a torn last line without a newline. Readers leave it out, because nobody was
//! told of that exit. Damage anywhere else is an error with its offset, because a record is lost.

use std::fs::File;
use std::io::{self, Write};

use muster_sealed::crc32;

use crate::wire::ExitRecord;

/// The line of one record.
pub fn line(record: &ExitRecord) -> String {
    let json = serde_json::to_string(record).expect("numbers and strings always serialize");
    format!("{:08x} {json}\n", crc32(json.as_bytes()))
}

/// The journal of a living runner. A failed write leaves nothing behind, so that the next line
/// follows a whole one.
#[derive(Debug)]
pub struct Writer {
    file: File,
    /// How many bytes of whole lines the file has.
    whole: u64,
    /// The file may hold more than the whole lines.
    torn: bool,
}

impl Writer {
    /// `file` is open for appending.
    pub fn new(file: File) -> io::Result<Self> {
        let whole = file.metadata()?.len();
        Ok(Self {
            file,
            whole,
            torn: false,
        })
    }

    /// Appends records with one sync for all. On an error none of them counts as written, and the
    /// caller tries again.
    pub fn append(&mut self, records: &[ExitRecord]) -> io::Result<()> {
        if self.torn {
            self.file.set_len(self.whole)?;
            self.torn = false;
        }
        let text: String = records.iter().map(line).collect();
        let written = self
            .file
            .write_all(text.as_bytes())
            .and_then(|()| self.file.sync_data());
        match &written {
            Ok(()) => self.whole += text.len() as u64,
            // A full disk may take part of a line. If the part cannot be removed now, it is removed
            // before the next line.
            Err(_) => self.torn = self.file.set_len(self.whole).is_err(),
        }
        written
    }
}

/// The content of a journal.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Journal {
    pub records: Vec<ExitRecord>,
    /// How many bytes of a torn last line were left out.
    pub torn: usize,
}

/// A damaged line.
#[derive(Debug, PartialEq, Eq)]
pub struct Damage {
    pub offset: usize,
    pub what: String,
}

pub fn read(text: &[u8]) -> Result<Journal, Damage> {
    let mut journal = Journal::default();
    let mut offset = 0;
    while offset < text.len() {
        let rest = &text[offset..];
        let Some(end) = rest.iter().position(|b| *b == b'\n') else {
            // A whole record is followed by one byte, so that byte was the newline.
            if rest
                .split_last()
                .is_some_and(|(_, line)| read_line(line).is_ok())
            {
                return Err(Damage {
                    offset,
                    what: "its end of line is damaged".into(),
                });
            }
            journal.torn = rest.len();
            break;
        };
        let record = read_line(&rest[..end]).map_err(|what| Damage { offset, what })?;
        journal.records.push(record);
        offset += end + 1;
    }
    Ok(journal)
}

/// The records of all whole lines, for a journal that [`read`] rejects. Each line carries its own
/// checksum.
pub fn whole_lines(text: &[u8]) -> Vec<ExitRecord> {
    text.split(|b| *b == b'\n')
        .filter_map(|line| read_line(line).ok())
        .collect()
}

fn read_line(line: &[u8]) -> Result<ExitRecord, String> {
    let (sum, json) = match line.split_at_checked(8) {
        Some((sum, [b' ', json @ ..])) => (sum, json),
        _ => return Err("the line does not begin with a checksum".into()),
    };
    if sum != format!("{:08x}", crc32(json)).as_bytes() {
        return Err("the checksum does not match".into());
    }
    serde_json::from_slice(json).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Exit;

    fn record(rank: u32) -> ExitRecord {
        let exit = Exit::Signal {
            signal: 11,
            core: false,
        };
        ExitRecord {
            v: 1,
            rank: Some(rank),
            pid: 9,
            start_time: 3,
            started_us: 1,
            exit,
            exited_us: 2,
            attempt: 1,
            restarted: false,
        }
    }

    #[test]
    fn torn_at_every_byte_keeps_every_whole_line() {
        let lines: Vec<String> = (0..3).map(|r| line(&record(r))).collect();
        let text = lines.concat();
        for cut in 0..=text.len() {
            let journal = read(&text.as_bytes()[..cut]).unwrap();
            let whole = (1..=3)
                .filter(|n| lines[..*n].concat().len() <= cut)
                .count();
            assert_eq!(
                journal.records,
                (0..whole as u32).map(record).collect::<Vec<_>>(),
                "cut at {cut}"
            );
            assert_eq!(
                journal.torn,
                cut - lines[..whole].concat().len(),
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn a_damaged_line_leaves_the_whole_ones() {
        let mut text = [0, 1, 2]
            .map(|rank| line(&record(rank)))
            .concat()
            .into_bytes();
        let second = line(&record(0)).len();
        text[second + 12] ^= 1;
        assert!(read(&text).is_err());
        assert_eq!(whole_lines(&text), [record(0), record(2)]);
    }

    #[test]
    fn a_flipped_bit_anywhere_is_seen_with_its_offset() {
        let first = line(&record(0));
        let text = first.clone() + &line(&record(1));
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let damage = read(&bytes).unwrap_err();
            // A newline that changed into another byte joins the two lines.
            let offset = if at < first.len() { 0 } else { first.len() };
            assert_eq!(damage.offset, offset, "bit flipped at {at}");
        }
    }
}
