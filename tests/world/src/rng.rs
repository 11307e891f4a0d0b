//! The world's only source of chance. Everything that happens follows from one seed.

use std::time::Duration;

/// xoshiro256** (Blackman and Vigna, 2018), seeded by SplitMix64 as its authors advise. It is our
/// own code, so that a seed means the same on every machine and with every version of a library.
#[derive(Clone, Debug)]
pub(crate) struct Rng([u64; 4]);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        let mut state = seed;
        Self(std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    pub(crate) fn number(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// From 0 up to `end`, without `end`. The bias of the remainder is far too small to matter
    /// here.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.number() % end.max(1) as u64) as usize
    }

    /// From `low` to `high`, both included.
    pub(crate) fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.number() % (high - low + 1)
    }

    pub(crate) fn percent(&mut self, share: u64) -> bool {
        self.number() % 100 < share
    }

    pub(crate) fn ms(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_micros(self.range(low * 1_000, high * 1_000))
    }

    /// Puts these in any order. One alone costs no number.
    pub(crate) fn shuffle<T>(&mut self, these: &mut [T]) {
        for end in (2..=these.len()).rev() {
            these.swap(end - 1, self.below(end));
        }
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() {
            None
        } else {
            from.get(self.below(from.len()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_the_same_for_ever_and_spread() {
        let mut rng = Rng::new(1);
        assert_eq!(
            [rng.number(), rng.number()],
            [0xb3f2_af6d_0fc7_10c5, 0x853b_5596_4736_4cea]
        );
        let mut seen = [0; 10];
        (0..10_000).for_each(|_| seen[rng.below(10)] += 1);
        assert!(
            seen.iter().all(|count| (850..1_150).contains(count)),
            "{seen:?}"
        );
    }
}
