//! The log line format of Kubernetes' container runtimes: `TIME STREAM F|P TEXT`, time in UTC with
//! nanoseconds.
//!
//! `F` ends a line, `P` is a piece of a longer one. Log collectors read this format as it is. A tag
//! may have more after a colon, which they leave alone: `F:E` is the end of a stream that had no
//! newline there, and `F:M` is a line that nobody wrote but Muster.

/// The longest text of one log line. A longer line is cut into pieces. containerd and CRI-O use the
/// same limit.
pub const MAX_TEXT: usize = 16 << 10;

/// The tag of a line with its newline.
pub const FULL: &str = "F";
/// The tag of a piece of a line, whose end follows.
pub const PIECE: &str = "P";
/// The tag of a last line without a newline. Whoever knows only the first letter ends the line there.
pub const END: &str = "F:E";
/// The tag of a line that is Muster's own.
pub const OURS: &str = "F:M";

/// Formats UNIX time as `2026-11-21T11:35:28.123456789Z`.
pub fn stamp(seconds: u64, nanos: u32) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (h, m, s) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{nanos:09}Z")
}

/// Converts days since 1970-01-01 to a date of the Gregorian calendar. Years begin in March, so
/// that the leap day comes last.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::stamp;

    #[test]
    fn stamps_are_utc() {
        assert_eq!(stamp(0, 0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(stamp(951_782_400, 5), "2000-02-29T00:00:00.000000005Z");
        assert_eq!(
            stamp(1_795_260_928, 123_456_789),
            "2026-11-21T11:35:28.123456789Z"
        );
        assert_eq!(stamp(4_107_542_399, 0), "2100-02-28T23:59:59.000000000Z");
        assert_eq!(stamp(4_107_542_400, 0), "2100-03-01T00:00:00.000000000Z");
    }
}
