//! The only source of chance of a trace. Everything in it follows from one seed.

/// SplitMix64 (Steele, Lea and Flood, 2014). It is our own code, so that a seed means the same on every machine.
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 up to 1, without 1.
    pub(super) fn unit(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Whether something happens that has this chance.
    pub(super) fn happens(&mut self, chance: f64) -> bool {
        self.unit() < chance
    }

    /// The time until the next of events that come independently, with this mean.
    pub(super) fn gap(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}
