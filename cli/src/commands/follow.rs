//! Stays with a job until it is over: progress on stderr, the outcome as the exit code.
//!
//! The coordinator may restart meanwhile. The job does not notice that, so the wait goes on too.

use std::time::Duration;

use muster_core::exit::{Exit, ExitClass};
use muster_proto::v1::{Job, JobPhase, JobRef, JobStatus, RankStatus, WatchJobsRequest};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Code, Status};

use super::submit::Ending;
use crate::{
    connect::{Client, lost},
    context::Context,
    fail::Failure,
    output::{table::plain, words},
};

/// How long a coordinator may be away before the wait is given up. A restart takes seconds, an
/// upgrade of a pod takes a minute.
const AWAY_MAX: Duration = Duration::from_secs(120);
/// The pause between two attempts to reach the coordinator again.
const RETRY: Duration = Duration::from_millis(500);

/// Waits for the end of a job and turns it into an exit code.
pub(crate) async fn until_over(
    cx: &Context,
    client: &Client,
    named: &JobRef,
    end: &Ending,
) -> Result<(), Failure> {
    let deadline = end.timeout.map(|timeout| Instant::now() + timeout);
    let job = until(cx, client, named, deadline, is_over)
        .await?
        .ok_or_else(|| {
            Failure::Timeout(format!(
                "job/{} is not over after {:?}; it goes on",
                named.name,
                end.timeout.unwrap_or_default()
            ))
        })?;
    outcome(&job, end.mirror_exit_code)
}

/// Waits until `done` accepts the job's status, and shows its progress on stderr. `None`: the
/// deadline came first.
pub(crate) async fn until(
    cx: &Context,
    client: &Client,
    named: &JobRef,
    deadline: Option<Instant>,
    done: impl Fn(&JobStatus) -> bool,
) -> Result<Option<Job>, Failure> {
    let watched = watch_until(cx, client, named, done);
    match deadline {
        None => watched.await.map(Some),
        Some(at) => timeout_at(at, watched).await.ok().transpose(),
    }
}

async fn watch_until(
    cx: &Context,
    client: &Client,
    named: &JobRef,
    done: impl Fn(&JobStatus) -> bool,
) -> Result<Job, Failure> {
    let live = cx.has_live_line();
    let mut said = String::new();
    let mut away = Away::default();
    loop {
        let request = WatchJobsRequest {
            namespace: named.namespace.clone(),
            name: named.name.clone(),
        };
        let mut stream = match client.jobs().watch(request).await {
            Ok(answer) => answer.into_inner(),
            Err(status) => {
                away.wait(cx, client, status).await?;
                continue;
            }
        };
        loop {
            let change = match stream.message().await {
                Ok(Some(change)) => change,
                Ok(None) => {
                    away.wait(
                        cx,
                        client,
                        Status::unavailable("the coordinator ended the watch"),
                    )
                    .await?;
                    break;
                }
                Err(status) => {
                    away.wait(cx, client, status).await?;
                    break;
                }
            };
            away.is_back(cx);
            if change.deleted {
                return Err(Failure::request(format!("job/{} was deleted", named.name)));
            }
            let Some(job) = change.job else { continue };
            let status = job.status.clone().unwrap_or_default();
            let line = progress(&status);
            let done = done(&status);
            if live && !done {
                let step = status
                    .last_step
                    .map(|step| format!(", step {step}"))
                    .unwrap_or_default();
                cx.say_live(&format!("job/{}: {}{step}", named.name, plain(&line)));
            } else if live || line != said {
                // Keep the last line on the terminal: it says how the job ended.
                cx.say(format!("job/{}: {line}", named.name));
            }
            said = line;
            if done {
                return Ok(job);
            }
        }
    }
}

/// For how long a coordinator has been away that answered before.
#[derive(Default)]
pub(crate) struct Away {
    since: Option<Instant>,
}

impl Away {
    /// Waits before the next attempt, or gives up.
    pub(crate) async fn wait(
        &mut self,
        cx: &Context,
        client: &Client,
        status: Status,
    ) -> Result<(), Failure> {
        // A stream that the server's shutdown ends is Unavailable or Cancelled, depending on how it
        // ended.
        if !(lost(&status) || status.code() == Code::Cancelled) {
            return Err(client.failure(status));
        }
        match self.since {
            None => {
                self.since = Some(Instant::now());
                cx.say("the coordinator is not reachable; waiting for it to come back (the job does not need it)");
            }
            Some(since) if since.elapsed() > AWAY_MAX => return Err(client.failure(status)),
            Some(_) => {}
        }
        sleep(RETRY).await;
        Ok(())
    }

    pub(crate) fn is_back(&mut self, cx: &Context) {
        if self.since.take().is_some() {
            cx.say("the coordinator is back");
        }
    }
}

/// The parts of a status whose changes a person wants to see; single steps are not among them.
fn progress(status: &JobStatus) -> String {
    let nodes = format!(
        "{} of {} running",
        status.nodes_running,
        words::count(status.replicas.into(), "node")
    );
    let why = match (status.reason.as_str(), status.message.as_str()) {
        ("", _) => String::new(),
        (reason, "") => format!(" ({reason})"),
        (reason, message) => format!(" ({reason}: {message})"),
    };
    format!(
        "{}, {nodes}, generation {}{why}",
        words::phase(status.phase),
        status.generation
    )
}

pub(crate) fn is_over(status: &JobStatus) -> bool {
    matches!(
        status.phase(),
        JobPhase::Succeeded | JobPhase::Failed | JobPhase::Cancelled
    )
}

/// Turns the outcome of a finished job into an exit code.
pub(crate) fn outcome(job: &Job, mirror: bool) -> Result<(), Failure> {
    let name = job.r#ref.clone().unwrap_or_default().name;
    let status = job.status.clone().unwrap_or_default();
    let why = [status.reason.as_str(), status.message.as_str()]
        .into_iter()
        .filter(|text| !text.is_empty())
        .collect::<Vec<_>>()
        .join(": ");
    match status.phase() {
        JobPhase::Cancelled => Err(Failure::Cancelled(format!(
            "job/{name} was cancelled: {why}"
        ))),
        JobPhase::Failed => {
            let message = format!("job/{name} failed: {why}");
            match culprit_code(&status).filter(|_| mirror) {
                Some(code) => Err(Failure::Mirrored { code, message }),
                None => Err(Failure::JobFailed(message)),
            }
        }
        _ => Ok(()),
    }
}

/// The exit code of the rank that failed by itself, not of those that fell with it. A signal counts
/// as in shells: 128 and the signal's number.
fn culprit_code(status: &JobStatus) -> Option<u8> {
    match read_exit(&culprit(&status.ranks)?.state)? {
        Exit::Code(code) => u8::try_from(code).ok(),
        Exit::Signal(signal) => u8::try_from(128 + signal).ok(),
    }
}

/// The rank that failed by itself, not one of those that fell with it.
pub(crate) fn culprit(ranks: &[RankStatus]) -> Option<&RankStatus> {
    let failed = ranks.iter().filter_map(|rank| {
        let exit = read_exit(&rank.state)?;
        let error = Some(rank.first_error.as_str()).filter(|text| !text.is_empty());
        let class = exit.class(error);
        (class != ExitClass::Success).then_some((class, rank))
    });
    Some(failed.min_by_key(|(class, rank)| (*class, rank.rank))?.1)
}

/// Reads "exit code 7" and "signal 9 (SIGKILL)", as `Exit` prints them.
fn read_exit(state: &str) -> Option<Exit> {
    if let Some(code) = state.strip_prefix("exit code ") {
        return code.parse().ok().map(Exit::Code);
    }
    let signal = state.strip_prefix("signal ")?;
    signal.split(' ').next()?.parse().ok().map(Exit::Signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(ranks: &[(Exit, &str)]) -> Job {
        let ranks = ranks
            .iter()
            .zip(0..)
            .map(|((exit, error), rank)| RankStatus {
                rank,
                state: exit.to_string(),
                first_error: (*error).into(),
                ..RankStatus::default()
            });
        let status = JobStatus {
            phase: JobPhase::Failed.into(),
            ranks: ranks.collect(),
            ..JobStatus::default()
        };
        Job {
            status: Some(status),
            ..Job::default()
        }
    }

    #[test]
    fn the_culprit_s_code_is_mirrored_not_a_victim_s() {
        let job = failed(&[
            (
                Exit::Code(1),
                "[gloo/transport/tcp/pair.cc:534] Connection closed by peer",
            ),
            (Exit::Signal(15), ""),
            (Exit::Code(77), "ValueError: x"),
        ]);
        assert_eq!(outcome(&job, true).unwrap_err().code(), 77);
        assert_eq!(outcome(&job, false).unwrap_err().code(), 3);
        assert_eq!(
            outcome(&failed(&[(Exit::Signal(11), "")]), true)
                .unwrap_err()
                .code(),
            139
        );
        assert_eq!(
            outcome(&failed(&[(Exit::Code(0), "")]), true)
                .unwrap_err()
                .code(),
            3,
            "nobody to mirror"
        );
    }

    #[test]
    fn the_end_of_a_job_is_an_exit_code() {
        for (phase, code) in [
            (JobPhase::Succeeded, 0),
            (JobPhase::Failed, 3),
            (JobPhase::Cancelled, 6),
        ] {
            let status = JobStatus {
                phase: phase.into(),
                ..JobStatus::default()
            };
            let outcome = outcome(
                &Job {
                    status: Some(status),
                    ..Job::default()
                },
                false,
            );
            assert_eq!(outcome.map_or_else(|failure| failure.code(), |()| 0), code);
        }
    }
}
