//! A task of one receiver: sends what is due, one message at a time, and tells the engine what was delivered. What jobs have
//! asked for has a task of its own, so that what a server says of a job's message, and how slowly, holds up none of the operator's.

use std::{sync::Arc, time::Duration};

use muster_core::{
    fleet::{
        Input,
        notify::{Answered, Dispatch, Message, Next, Outbox, Sent},
    },
    time::Timestamp,
};
use tokio::sync::watch;
use tracing::{info, warn};

use super::desk::{Desk, Figures, Tried};
use muster_handle::handle::Handle;

/// How long to wait while another coordinator may decide. The process ends soon, or goes on.
const UNSURE: Duration = Duration::from_secs(1);

/// What is to be done next, apart from the board.
enum Step {
    Send(Box<Message>, u64),
    WaitUntil(Timestamp),
    WaitForNews,
}

/// Sends to this receiver what jobs have asked for, or what the operator has, until the engine ends. It is dropped at the shutdown,
/// also while it waits for an answer.
pub(crate) async fn send(desk: Arc<Desk>, name: String, of_jobs: bool, handle: Handle) {
    let Some(receiver) = desk.receiver(&name) else {
        return;
    };
    let (mut outbox, mut dispatch) = (handle.outbox(), Dispatch::default());
    loop {
        match next(&mut outbox, &mut dispatch, (&name, of_jobs), handle.now()) {
            Step::Send(..) if !handle.still_leads() => tokio::time::sleep(UNSURE).await,
            Step::Send(message, dropped) => {
                let before = desk.figures(&name, of_jobs);
                let tried = desk
                    .attempt(receiver, &message, dropped, handle.now())
                    .await;
                dispatch.answered(message.number, tried.answered, handle.now());
                tell(&name, &message, &before, &tried);
                if !matches!(tried.answered, Answered::Delivered | Answered::Hopeless) {
                    continue;
                }
                let sent = Sent {
                    number: message.number,
                    count: message.count,
                    dropped,
                };
                if handle.tell(Input::Notified(sent)).await.is_err() {
                    return;
                }
            }
            Step::WaitUntil(at) => {
                let left = at.since(handle.now());
                tokio::select! {
                    () = tokio::time::sleep(left) => {}
                    changed = outbox.changed() => if changed.is_err() { return },
                }
            }
            Step::WaitForNews => {
                if outbox.changed().await.is_err() {
                    return;
                }
            }
        }
    }
}

fn next(
    outbox: &mut watch::Receiver<Arc<Outbox>>,
    dispatch: &mut Dispatch,
    (name, of_jobs): (&str, bool),
    now: Timestamp,
) -> Step {
    // The engine waits while somebody looks at the board, so look, and let go.
    let outbox = outbox.borrow_and_update().clone();
    match dispatch.next(outbox.of(name, of_jobs), now) {
        Next::Send(message) => {
            // What jobs have asked for tells nobody of what the operator was not told.
            let dropped = outbox.dropped.get(name).filter(|_| !of_jobs);
            let dropped = dropped.copied().unwrap_or_default();
            Step::Send(Box::new(message.clone()), dropped)
        }
        Next::Wait(at) => Step::WaitUntil(at),
        Next::Nothing => Step::WaitForNews,
    }
}

/// Says once that a receiver does not answer, and once that it does again; and who does not get a message that others got.
fn tell(name: &str, message: &Message, before: &Figures, tried: &Tried) {
    // What a server says of an address that a job has named is no news of the receiver.
    match (&message.to, tried.answered) {
        (_, Answered::Hopeless) => {
            let said = &tried.said;
            return info!(
                receiver = name,
                "a mail that a job asked for is given up: {said}"
            );
        }
        (Some(_), Answered::Refused) => return,
        _ => {}
    }
    let of_jobs = message.of_jobs;
    match (&before.failing, tried.answered) {
        (None, Answered::Delivered) => {}
        (Some(_), Answered::Delivered) => {
            info!(
                receiver = name,
                of_jobs, "notifications are delivered again"
            )
        }
        (None, _) => warn!(
            receiver = name,
            of_jobs,
            "a notification was not delivered, and is tried again: {} (muster notify list)",
            tried.said
        ),
        (Some(_), _) => {}
    }
    if let (Some(except), Answered::Delivered) = (&tried.except, tried.answered) {
        warn!(receiver = name, "a notification was delivered, {except}");
    }
}
