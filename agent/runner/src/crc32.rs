//! CRC-32 (IEEE 802.3, reflected polynomial 0xEDB88320), bit by bit: exit records are short, so no table.

pub fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |c, _| if c & 1 == 1 { (c >> 1) ^ 0xEDB8_8320 } else { c >> 1 })
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn check_value_of_the_standard() {
        assert_eq!(super::crc32(b"123456789"), 0xCBF4_3926);
        assert_eq!(super::crc32(b""), 0);
    }
}
