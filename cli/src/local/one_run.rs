//! A cluster for one command: it is started before the command and ended after it, whatever came of it.

use std::{env, path::PathBuf, time::Duration};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Down, NodeFlags, StartFlags, Up, down, start};
use crate::{args::Globals, context::Context, contexts, fail::Failure};

/// How long the cluster may take to start, as with `muster local up`.
const START: Duration = Duration::from_secs(60);
/// The time for workers to save their state if the command is interrupted.
const GRACE: Duration = Duration::from_secs(10);

/// Runs `body` with a cluster of this many nodes, in a directory of its own that is removed afterwards. An
/// interrupt, a termination, and the end of the terminal end the workers and the cluster, too.
pub(crate) async fn around(
    cx: &Context,
    nodes: u32,
    body: impl AsyncFnOnce(&Context) -> Result<(), Failure>,
) -> Result<(), Failure> {
    // From here on nothing ends this process before the cluster is down.
    let mut stops = Stops::listen()?;
    let name = format!("muster-run-{}", uuid::Uuid::now_v7().simple());
    let dir = env::temp_dir().join(name);
    let own = Context::new(Globals {
        server: None,
        context: Some(contexts::LOCAL.into()),
        dir: Some(dir.clone()),
        ..cx.globals.clone()
    });
    let up = Up {
        nodes,
        tls: false,
        node: NodeFlags {
            slots: 1,
            label: Vec::new(),
            hardware: None,
            warm_pool: 0,
        },
        start: StartFlags {
            bin_dir: env::var_os("MUSTER_BIN_DIR").map(PathBuf::from),
            timeout: START,
        },
    };
    let mut is_up = false;
    let work = async {
        start::bring_up(&own, &dir, &up).await?;
        is_up = true;
        body(&own).await
    };
    let outcome = tokio::select! {
        outcome = work => outcome,
        () = stops.next() => Err(Failure::Interrupted("interrupted: the workers are stopped".into())),
    };
    let end = Down {
        // The logs of a cluster that did not start say why.
        keep: !is_up,
        grace: GRACE,
    };
    if let Err(left) = down::take_down(&own, &dir, &end).await {
        cx.warn(format!(
            "the cluster of this run in {}: {left}",
            dir.display()
        ));
    }
    outcome
}

/// The signals that ask this command to end.
pub(crate) struct Stops([Signal; 3]);

impl Stops {
    pub(crate) fn listen() -> Result<Stops, Failure> {
        let one = |kind| signal(kind).map_err(|e| Failure::request(format!("signals: {e}")));
        let kinds = [
            SignalKind::interrupt(),
            SignalKind::terminate(),
            SignalKind::hangup(),
        ];
        let [interrupt, terminate, hangup] = kinds.map(one);
        Ok(Stops([interrupt?, terminate?, hangup?]))
    }

    pub(crate) async fn next(&mut self) {
        let Stops([interrupt, terminate, hangup]) = self;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
