//! One quick pass over a line, which says what may be in it. Most lines of a log show no step, and
//! this pass is all that they cost.

use crate::table::{Look, Table};

/// What was seen on a line: one bit for each distinct anchor, and a few of their own.
pub(crate) type Seen = u64;

const BAR: u32 = 63;
const RULE: u32 = 62;
const ESCAPE: u32 = 61;
pub(crate) const LOSS: u32 = 60;
/// Anchors beyond this many share one bit.
const LAST: u32 = 59;

/// The bytes that the formats of a table cannot do without.
#[derive(Clone, Debug)]
pub(crate) struct Scan {
    /// Which hashes belong to an anchor.
    filter: [u64; 4],
    anchors: Vec<(u32, u32)>,
    /// For each format the bits of which one must be seen.
    pub(crate) needs: Vec<Seen>,
}

fn hash(anchor: u32) -> usize {
    (anchor.wrapping_mul(0x9E37_79B1) >> 24) as usize
}

impl Scan {
    pub(crate) fn new(table: &Table) -> Self {
        let mut scan = Self {
            filter: [0; 4],
            anchors: Vec::new(),
            needs: Vec::new(),
        };
        scan.add(u32::from_be_bytes(*b"loss"), LOSS);
        for format in &table.formats {
            let needs = match &format.look {
                Look::Template(template) => 1 << scan.bit(template.anchor),
                Look::Bar => 1 << BAR,
                Look::Rule => 1 << RULE,
                Look::Word => {
                    let [step, iter] = [*b"step", *b"iter"].map(u32::from_be_bytes);
                    1 << scan.bit(step) | 1 << scan.bit(iter)
                }
                Look::Off => 0,
            };
            scan.needs.push(needs);
        }
        scan
    }

    fn bit(&mut self, anchor: u32) -> u32 {
        if let Some((_, bit)) = self.anchors.iter().find(|(known, _)| *known == anchor) {
            return *bit;
        }
        let bit = (self.anchors.len() as u32).min(LAST);
        self.add(anchor, bit);
        bit
    }

    fn add(&mut self, anchor: u32, bit: u32) {
        self.filter[hash(anchor) >> 6] |= 1 << (hash(anchor) & 63);
        self.anchors.push((anchor, bit));
    }

    pub(crate) fn look(&self, line: &[u8]) -> Seen {
        let (mut window, mut seen) = (0u32, 0);
        for byte in line {
            window = window << 8 | u32::from(byte.to_ascii_lowercase());
            let at = hash(window);
            if self.filter[at >> 6] >> (at & 63) & 1 == 1 {
                for (anchor, bit) in &self.anchors {
                    if *anchor == window {
                        seen |= 1 << bit;
                    }
                }
            }
            match byte {
                b'|' if window & 0xFFFF == 0x257C => seen |= 1 << BAR,
                b'0'..=b'9' if window & 0xFF_FF00 == 0x25_2000 => seen |= 1 << BAR,
                // ━ and ─; a bar that has only begun may have no other.
                0x80 | 0x81 if window & 0xFF_FFFE == 0xE2_9480 => seen |= 1 << RULE,
                0x1B => seen |= 1 << ESCAPE,
                _ => {}
            }
        }
        seen
    }

    pub(crate) fn is_plain(seen: Seen) -> bool {
        seen >> ESCAPE & 1 == 0
    }
}

/// Leaves the colours out of a line. `None`: the cursor goes up at its end, so this is a bar inside
/// another bar.
pub(crate) fn without_escapes(line: &[u8]) -> Option<Vec<u8>> {
    let mut plain = Vec::with_capacity(line.len());
    let mut bytes = line.iter();
    while let Some(byte) = bytes.next() {
        if *byte != 0x1B {
            plain.push(*byte);
            continue;
        }
        if bytes.as_slice().first() != Some(&b'[') {
            continue;
        }
        bytes.next();
        // The parameters of a sequence end with a byte of 0x40 to 0x7E.
        let end = bytes.find(|b| (0x40..=0x7E).contains(*b));
        if end == Some(&b'A') && !plain.is_empty() {
            return None;
        }
    }
    Some(plain)
}
