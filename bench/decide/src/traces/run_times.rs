//! How long jobs run: a distribution that is known by some of its quantiles.
//!
//! Between two quantiles the logarithm of the run time grows evenly with the share of jobs. Above the last one nothing is known, so all
//! jobs there run as long as it says.

use super::rng::Rng;

/// Shares of jobs, ascending from 0, and the seconds that no job of that share exceeds.
#[derive(Clone, Copy)]
pub(super) struct RunTimes(pub(super) &'static [(f64, f64)]);

/// Between two quantiles.
struct Piece {
    share: f64,
    from: f64,
    to: f64,
}

impl Piece {
    fn mean(&self) -> f64 {
        match self.to > self.from {
            true => (self.to - self.from) / (self.to / self.from).ln(),
            false => self.from,
        }
    }

    /// Seconds of run time that jobs of this piece have, per job of the whole distribution.
    fn held(&self) -> f64 {
        self.share * self.mean()
    }
}

impl RunTimes {
    fn pieces(self) -> impl Iterator<Item = Piece> {
        let (share, seconds) = *self.0.last().expect("there are quantiles");
        let above = Piece {
            share: 1.0 - share,
            from: seconds,
            to: seconds,
        };
        let between = self.0.windows(2).map(|two| Piece {
            share: two[1].0 - two[0].0,
            from: two[0].1,
            to: two[1].1,
        });
        between.chain([above])
    }

    /// Seconds that this share of jobs does not exceed.
    pub(super) fn quantile(self, share: f64) -> f64 {
        let mut left = share;
        for piece in self.pieces() {
            if left < piece.share {
                return piece.from * (piece.to / piece.from).powf(left / piece.share);
            }
            left -= piece.share;
        }
        self.0.last().expect("there are quantiles").1
    }

    /// Seconds.
    pub(super) fn mean(self) -> f64 {
        self.pieces().map(|piece| piece.held()).sum()
    }

    /// The run time of a new job.
    pub(super) fn draw(self, rng: &mut Rng) -> f64 {
        self.quantile(rng.unit())
    }

    /// The run time of a job that is met while it runs. Long jobs are met more often: the chance of each is in proportion to its run time.
    pub(super) fn draw_met(self, rng: &mut Rng) -> f64 {
        let mut left = rng.unit() * self.mean();
        for piece in self.pieces() {
            let held = piece.held();
            if left < held {
                // The density falls as 1/t within a piece, so weighted by t it is even.
                return piece.from + (piece.to - piece.from) * left / held;
            }
            left -= held;
        }
        self.0.last().expect("there are quantiles").1
    }
}
