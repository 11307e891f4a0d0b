//! A question to something that may never answer, such as a mount whose server is dead. A separate
//! thread asks and may hang; the caller waits as long as it likes and goes on.

use std::{
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::Instant,
};

use tracing::warn;

pub(super) struct Patient<T> {
    ask: SyncSender<()>,
    answers: Receiver<Option<T>>,
    /// A question was asked and is not answered yet.
    asked: bool,
}

impl<T: Send + 'static> Patient<T> {
    /// `read` is called once for each question. The thread ends when this value is dropped and
    /// `read` has returned.
    pub(super) fn start(name: &str, mut read: impl FnMut() -> Option<T> + Send + 'static) -> Self {
        // One question and one answer at a time.
        let ((ask, questions), (answer, answers)) = (sync_channel(1), sync_channel(1));
        let work = move || {
            while questions.recv().is_ok() {
                if answer.send(read()).is_err() {
                    return;
                }
            }
        };
        if let Err(e) = thread::Builder::new().name(name.into()).spawn(work) {
            warn!("{name}: no thread: {e}");
        }
        Self {
            ask,
            answers,
            asked: false,
        }
    }

    /// Asks the question, unless an earlier one is still open. An answer that came too late for its
    /// look is dropped.
    pub(super) fn ask(&mut self) {
        if self.answers.try_recv().is_ok() {
            self.asked = false;
        }
        if !self.asked {
            self.asked = self.ask.try_send(()).is_ok();
        }
    }

    /// The answer, if it comes in time.
    pub(super) fn answer(&mut self, until: Instant) -> Option<T> {
        if !self.asked {
            return None;
        }
        let answer = self
            .answers
            .recv_timeout(until.saturating_duration_since(Instant::now()))
            .ok()?;
        self.asked = false;
        answer
    }

    pub(super) fn is_asked(&self) -> bool {
        self.asked
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::channel, time::Duration};

    use super::*;

    #[test]
    fn a_late_answer_is_not_the_answer_to_the_next_question() {
        let (tell, told) = channel::<u32>();
        let mut patient = Patient::start("test", move || told.recv().ok());
        let soon = || Instant::now() + Duration::from_secs(60);
        patient.ask();
        tell.send(1).unwrap();
        assert_eq!(patient.answer(soon()), Some(1));
        patient.ask();
        assert_eq!(patient.answer(Instant::now()), None, "it hangs");
        assert!(patient.is_asked());
        patient.ask();
        tell.send(2).unwrap();
        tell.send(3).unwrap();
        // The open question is answered first; the one after it gets the newer value.
        assert_eq!(patient.answer(soon()), Some(2));
        patient.ask();
        assert_eq!(patient.answer(soon()), Some(3));
    }
}
