//! What one node has left for one job, while it is thought through who else comes there. It never changes `capacity`.

use crate::fleet::capacity::FreeGpu;

/// What one node has left for one job.
///
/// It is a snapshot: reserving in it changes nothing on the node.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    /// How many more worker groups without GPUs fit.
    pub slots: u32,
    /// In the order of the node's report.
    pub gpus: Vec<FreeGpu<'a>>,
}

impl Room<'_> {
    /// Takes a share out of it for another job that is about to come. `gpus` are UUIDs; none of
    /// them: a slot.
    pub(crate) fn reserve(&mut self, gpus: &[String]) {
        if gpus.is_empty() {
            self.slots = self.slots.saturating_sub(1);
        } else {
            let reserved = |free: &FreeGpu<'_>| gpus.iter().any(|gpu| gpu == free.uuid);
            self.gpus.retain(|free| !reserved(free));
        }
    }

    /// Whether a share fits into what is left.
    pub(crate) fn fits(&self, gpus: &[String]) -> bool {
        let free = |gpu: &String| self.gpus.iter().any(|free| free.uuid == gpu);
        match gpus.is_empty() {
            true => self.slots > 0,
            false => gpus.iter().all(free),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_for_another_job_is_not_left() {
        let gpu = |index, uuid| FreeGpu { index, uuid };
        let mut room = Room {
            slots: 2,
            gpus: vec![gpu(0, "GPU-0"), gpu(1, "GPU-1"), gpu(2, "GPU-2")],
        };
        let share =
            |gpus: &[&str]| -> Vec<String> { gpus.iter().map(|gpu| (*gpu).into()).collect() };
        assert!(room.fits(&share(&["GPU-0", "GPU-2"])));
        assert!(!room.fits(&share(&["GPU-0", "GPU-7"])), "it is not free");

        room.reserve(&share(&["GPU-2"]));
        assert!(!room.fits(&share(&["GPU-0", "GPU-2"])));
        assert!(room.fits(&share(&["GPU-0", "GPU-1"])));
        assert_eq!(room.slots, 2, "a share with GPUs takes no slot");

        room.reserve(&[]);
        assert!(room.fits(&[]), "one slot is left");
        room.reserve(&[]);
        assert!(!room.fits(&[]));
        room.reserve(&[]);
        assert_eq!(room.slots, 0);
    }
}
