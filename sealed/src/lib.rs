//! Files that prove that they are whole: a JSON object whose last field, `sum`, is the CRC-32 of
//! everything before it.
//!
//! The file stays JSON, so that any program can read it. A CRC-32 detects all damage of up to 32
//! bits in a row, and any three flipped bits in files of this size. Of other damage it misses one
//! in four thousand million. It protects against disks and editors, not against enemies.

/// Why sealed text differs from what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The end with the checksum is missing.
    CutOff,
    /// The text and its checksum do not match.
    Sum,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Broken::CutOff => {
                "it is cut off, or was written by something else: its end is no checksum"
            }
            Broken::Sum => "its checksum does not match",
        })
    }
}

impl std::error::Error for Broken {}

const FIELD: &[u8] = b",\"sum\":\"";
const END: &[u8] = b"\"}\n";
/// A CRC-32 in hexadecimal digits.
const DIGITS: usize = 8;

/// Puts the checksum into a JSON object, which must have a field.
pub fn seal(mut object: Vec<u8>) -> Vec<u8> {
    object.truncate(object.trim_ascii_end().len());
    assert_eq!(object.pop(), Some(b'}'), "only a JSON object can be sealed");
    let sum = format!("{:08x}", crc32(&object));
    object.extend_from_slice(FIELD);
    object.extend_from_slice(sum.as_bytes());
    object.extend_from_slice(END);
    object
}

/// The sealed object, byte for byte as it was written, if it is whole. It is still JSON.
pub fn open(text: &[u8]) -> Result<&[u8], Broken> {
    let (body, sum) = text
        .strip_suffix(END)
        .and_then(|rest| rest.split_at_checked(rest.len().checked_sub(DIGITS)?))
        .and_then(|(rest, sum)| Some((rest.strip_suffix(FIELD)?, sum)))
        .ok_or(Broken::CutOff)?;
    if format!("{:08x}", crc32(body)).as_bytes() == sum {
        Ok(text)
    } else {
        Err(Broken::Sum)
    }
}

/// One entry per byte of the reflected polynomial 0xEDB88320 (IEEE 802.3).
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ 0xEDB8_8320
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// CRC-32 as in IEEE 802.3, gzip and PNG.
pub fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (crc >> 8) ^ TABLE[usize::from(crc as u8 ^ byte)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_value_of_the_standard() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        assert_eq!(crc32(b""), 0);
    }

    #[test]
    fn a_sealed_object_is_the_object_with_a_field_more() {
        let sealed = seal(b"{\"a\":1}\n".to_vec());
        assert_eq!(
            sealed,
            b"{\"a\":1,\"sum\":\"a702fc6e\"}\n",
            "{}",
            String::from_utf8_lossy(&sealed)
        );
        assert_eq!(open(&sealed), Ok(sealed.as_slice()));
    }

    #[test]
    fn every_cut_and_every_flip_is_seen() {
        let sealed = seal(b"{\"pid\":1234,\"name\":\"abc\"}".to_vec());
        for at in 0..sealed.len() {
            assert_eq!(open(&sealed[..at]), Err(Broken::CutOff), "cut at {at}");
            for bit in 0..8 {
                let mut flipped = sealed.clone();
                flipped[at] ^= 1 << bit;
                assert!(open(&flipped).is_err(), "bit {bit} of byte {at}");
            }
        }
    }
}
