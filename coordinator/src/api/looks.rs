//! The questions that the fleet has about ranks: they go to the agents as those of users do, and the answers go back to the
//! engine. A question that is not answered here is asked again.

use std::sync::Arc;

use muster_core::{fleet::Input, stacks::RankStack};
use muster_handle::inbox::LookOrder;
use tokio::sync::{Semaphore, mpsc};

use super::{context::Context, stacks};

/// How many jobs are looked at at the same time. Each holds the stacks of all its ranks in memory.
const AT_A_TIME: usize = 4;
/// How many frames of a main thread are kept: the innermost ones, and those of the job's own program as a rule.
const FRAMES_MAX: usize = 48;

/// Answers until the engine ends.
pub(super) fn answer(context: &Context, mut looks: mpsc::Receiver<LookOrder>) {
    let (context, places) = (context.clone(), Arc::new(Semaphore::new(AT_A_TIME)));
    let scope = context.scope.clone();
    scope.spawn("looks", async move {
        let shutdown = context.scope.shutdown().clone();
        while let Some(Some(order)) = shutdown.run_until_cancelled(looks.recv()).await {
            let Ok(place) = places.clone().acquire_owned().await else {
                return;
            };
            let (context, shutdown) = (context.clone(), shutdown.clone());
            context.scope.clone().spawn("look", async move {
                // If the coordinator ends, the next one asks anew.
                let _ = shutdown.run_until_cancelled(look(&context, order)).await;
                drop(place);
            });
        }
    });
}

async fn look(context: &Context, order: LookOrder) {
    let LookOrder {
        job,
        generation,
        number,
        ranks,
    } = order;
    let mut found = stacks::look(context, &job, generation, ranks).await;
    found.iter_mut().for_each(shorten);
    let answer = Input::Looked {
        job,
        number,
        ranks: found,
    };
    // An error: the engine has ended.
    let _ = context.handle.tell(answer).await;
}

/// Leaves what a verdict needs: the main thread, as far as it is kept.
fn shorten(rank: &mut RankStack) {
    rank.threads.truncate(1);
    for frames in &mut rank.threads {
        frames.truncate(FRAMES_MAX);
    }
}
