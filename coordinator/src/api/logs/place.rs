//! Where a reader is in a rank's log, so that a read that broke can go on without losing or repeating a line.
//!
//! Lines of a CRI log begin with their time, which never goes back within one file; lines of the same nanosecond are told apart by
//! counting them.

/// How far a log was passed on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    /// The time of the last line passed on, and how many lines had it.
    last: Option<(String, usize)>,
    /// Lines of that time still to be skipped in this read.
    skip: usize,
    /// Whether this read may still bring lines that were passed on.
    catching_up: bool,
}

impl Place {
    pub(crate) fn is_at_start(&self) -> bool {
        self.last.is_none()
    }

    /// A new read begins, from the log's beginning.
    pub(crate) fn restart(&mut self) {
        self.skip = self.last.as_ref().map_or(0, |(_, count)| *count);
        self.catching_up = self.last.is_some();
    }

    /// The lines that were not passed on before; they count as passed on now.
    pub(crate) fn unseen(&mut self, mut lines: Vec<String>) -> Vec<String> {
        lines.retain(|line| {
            let time = line.split(' ').next().unwrap_or_default();
            if self.catching_up
                && let Some((last, _)) = &self.last
            {
                match time.cmp(last.as_str()) {
                    std::cmp::Ordering::Less => return false,
                    std::cmp::Ordering::Equal if self.skip > 0 => {
                        self.skip -= 1;
                        return false;
                    }
                    _ => self.catching_up = false,
                }
            }
            match &mut self.last {
                Some((last, count)) if last == time => *count += 1,
                last => *last = Some((time.to_owned(), 1)),
            }
            true
        });
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    const LOG: [&str; 6] = ["01 stdout F a", "02 stdout F b", "02 stdout F b", "02 stdout F c", "03 stdout F d", "04 stdout F e"];

    #[test]
    fn wherever_a_read_breaks_no_line_is_lost_or_repeated() {
        for broken_after in 0..=LOG.len() {
            for chunk in 1..=LOG.len() {
                let mut place = Place::default();
                place.restart();
                let mut got = place.unseen(lines(&LOG[..broken_after]));
                place.restart();
                for chunk in LOG.chunks(chunk) {
                    got.extend(place.unseen(lines(chunk)));
                }
                assert_eq!(got, LOG, "broken after {broken_after}, chunks of {chunk}");
            }
        }
    }

    #[test]
    fn a_tail_goes_on_from_its_last_line() {
        let mut place = Place::default();
        place.restart();
        assert_eq!(place.unseen(lines(&LOG[4..5])), LOG[4..5]);
        place.restart();
        assert_eq!(place.unseen(lines(&LOG)), LOG[5..]);
    }
}
