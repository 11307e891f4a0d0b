//! The right to decide, as a value that every thread can ask. A store gives it out.

use std::{fmt, sync::Arc};

/// Says whether this process still has the right to decide.
#[derive(Clone)]
pub struct Lead(Arc<dyn Fn() -> bool + Send + Sync>);

impl Lead {
    pub fn new(still_holds: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(still_holds))
    }

    /// The right of a process that keeps all others out for as long as it lives.
    pub fn for_life() -> Self {
        Self::new(|| true)
    }

    pub fn still_holds(&self) -> bool {
        self.0()
    }
}

impl fmt::Debug for Lead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lead").field(&self.still_holds()).finish()
    }
}
