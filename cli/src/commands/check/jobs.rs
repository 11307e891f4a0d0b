//! The jobs of a check: submitted round by round, read, and deleted.

use std::{cell::RefCell, collections::BTreeMap, time::Duration};

use futures::{StreamExt, stream};
use muster_core::{
    check::{self, Evidence, Standing, Subject, Trial, Verdict},
    id::NodeName,
    spec::JobDocument,
};
use muster_proto::v1::{
    CancelRequest, DeleteRequest, Job, JobRef, LogsRequest, WaitFor, WaitRequest,
};
use tokio::time::{Instant, sleep};
use tonic::Code;

use super::{
    Nodes,
    chosen::{Chosen, Group},
    job::{self, Wish},
    results::{self, End, Line},
};
use crate::{
    commands::{follow, run, submit},
    connect::Client,
    context::Context,
    fail::Failure,
    output::{table::plain, words},
};

/// Jobs that run at the same time. Each costs the coordinator a stream for its log.
const AT_ONCE: usize = 64;
/// Rounds that are added where a doubt is left. Of the second, only a fleet with many bad nodes has use.
const MORE: usize = 2;
/// A job may be stopped and reported so long after its time is over.
const SLACK: Duration = Duration::from_secs(60);
/// Pause before a request that was lost on its way is sent again.
const AGAIN: Duration = Duration::from_millis(500);
/// How long jobs may take to stop when the check is over.
const STOP: Duration = Duration::from_secs(30);
/// Most bytes of a log that are read: a few lines for each of 512 processes, and what libraries print.
const LOG_MAX: usize = 4 << 20;

pub(super) struct Jobs<'a> {
    cx: &'a Context,
    pub(super) client: &'a Client,
    python: String,
    timeout: Duration,
    /// What the names of the jobs of this check have in common.
    id: String,
    /// Jobs that were submitted and are not deleted yet.
    there: RefCell<Vec<JobRef>>,
    count: RefCell<usize>,
}

impl<'a> Jobs<'a> {
    pub(super) async fn new(
        cx: &'a Context,
        client: &'a Client,
        args: &Nodes,
    ) -> Result<Self, Failure> {
        let here = submit::here()?;
        let python = match &args.python {
            Some(python) => Some(run::home::named(python, &here)),
            None if cx.is_local() => run::home::interpreter(here.as_ref()).await,
            None => None,
        };
        let unique = uuid::Uuid::now_v7().simple().to_string();
        Ok(Jobs {
            cx,
            client,
            python: python.unwrap_or_else(|| "python3".to_owned()),
            timeout: args.timeout,
            // The end of a version 7 UUID is random.
            id: unique[unique.len() - 5..].to_owned(),
            there: RefCell::default(),
            count: RefCell::default(),
        })
    }

    fn document(&self, nodes: &[NodeName], gpus: u32) -> JobDocument {
        let mut count = self.count.borrow_mut();
        *count += 1;
        job::document(Wish {
            name: job::name(&self.id, *count, nodes),
            namespace: Some(self.cx.namespace()),
            nodes,
            gpus,
            python: &self.python,
            timeout: self.timeout,
        })
    }

    /// Those of these nodes that would not take a job now, and why. Of very many only the first are told; the jobs on the
    /// others then wait in vain, and say it.
    pub(super) async fn refusing(
        &self,
        nodes: &[NodeName],
        gpus: u32,
    ) -> Result<BTreeMap<NodeName, String>, Failure> {
        let mut document = self.document(nodes, gpus);
        // Only a job that needs all of them is told who would not take it.
        document.spec.min_replicas = document.spec.replicas;
        let answer = Box::pin(submit::ask(self.cx, self.client, document, true)).await?;
        let wait = answer.plan.and_then(|plan| plan.wait);
        let excluded = wait.into_iter().flat_map(|wait| wait.excluded);
        Ok(excluded
            .map(|one| (NodeName::from(one.node), one.message))
            .filter(|(node, _)| nodes.contains(node))
            .collect())
    }

    /// All rounds of all groups, and what they say.
    pub(super) async fn tournament(
        &self,
        chosen: &Chosen,
        rounds: usize,
    ) -> Result<Vec<Verdict>, Failure> {
        let names: Vec<Vec<NodeName>> = { chosen.groups.iter() }
            .map(|group| group.nodes.iter().map(|node| node.name.clone()).collect())
            .collect();
        let planned: Vec<_> = { names.iter() }
            .map(|names| check::rounds(names, rounds))
            .collect();
        let mut trials: Vec<Vec<Trial>> = vec![Vec::new(); names.len()];
        let all = planned.iter().map(Vec::len).max().unwrap_or(0);
        for round in 0..all + MORE {
            let jobs: Vec<(usize, Vec<NodeName>)> = { names.iter().enumerate() }
                .flat_map(|(group, names)| {
                    let jobs = match round < all {
                        true => planned[group].get(round).cloned().unwrap_or_default(),
                        false => check::one_more(names, &trials[group]),
                    };
                    jobs.into_iter().map(move |job| (group, job))
                })
                .collect();
            if jobs.is_empty() {
                continue;
            }
            let what = words::count(jobs.len() as u64, "job");
            self.cx.say(match round < all {
                true => format!("round {} of {all}: {what}", round + 1),
                false => format!("one more round, with other partners: {what}"),
            });
            let running = jobs.into_iter().map(async |(group, nodes)| {
                let trial = self.one(&chosen.groups[group], &nodes).await?;
                Ok::<_, Failure>((group, trial))
            });
            let mut done = stream::iter(running).buffer_unordered(AT_ONCE);
            while let Some(outcome) = done.next().await {
                let (group, trial) = outcome?;
                self.cx.say(plain(&told(&trial)));
                trials[group].push(trial);
            }
        }
        let of_groups = chosen.groups.iter().zip(&trials);
        let mut verdicts: Vec<Verdict> = of_groups
            .flat_map(|(group, trials)| check::verdicts(&group.nodes, trials))
            .collect();
        verdicts.extend(chosen.left_out.iter().map(|(node, why)| Verdict {
            subject: Subject::Node(node.clone()),
            standing: Standing::NotChecked,
            reason: why.clone(),
            evidence: Evidence::default(),
        }));
        Ok(verdicts)
    }

    /// One job from its submission to its deletion.
    async fn one(&self, group: &Group, nodes: &[NodeName]) -> Result<Trial, Failure> {
        let gpus = group.gpus_of(nodes);
        let document = self.document(nodes, gpus);
        let named = submit::reference(self.cx, &document);
        // Before it is submitted: the answer may be lost, and the job there.
        self.there.borrow_mut().push(named.clone());
        Box::pin(submit::ask(self.cx, self.client, document, false)).await?;
        let mut job = self.until_over(&named, self.timeout + SLACK).await?;
        let mut overdue = false;
        if job.is_none() {
            overdue = true;
            self.cancel(&named).await?;
            job = self.until_over(&named, STOP).await?;
        }
        let status = job.and_then(|job| job.status).unwrap_or_default();
        let lines = self.lines(&named).await;
        self.delete(&named).await;
        let end = End {
            out_of_time: overdue || status.reason == "DeadlineExceeded",
            status: &status,
        };
        Ok(results::trial(nodes, job::procs(gpus), &lines, &end))
    }

    /// The job when it is over. `None`: it is not after this time.
    async fn until_over(&self, named: &JobRef, limit: Duration) -> Result<Option<Job>, Failure> {
        let deadline = Instant::now() + limit;
        let mut away = follow::Away::default();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            // In parts, so that a coordinator that hangs is noticed.
            let part = left.min(Duration::from_secs(30));
            let mut request = tonic::Request::new(WaitRequest {
                r#ref: Some(named.clone()),
                wait_for: WaitFor::Complete.into(),
                timeout_ms: u64::try_from(part.as_millis()).unwrap_or(u64::MAX).max(1),
            });
            request.set_timeout(part + Duration::from_secs(5));
            match self.client.jobs().wait(request).await {
                Ok(answer) => return Ok(answer.into_inner().job),
                Err(status) => match status.code() {
                    Code::DeadlineExceeded => {}
                    Code::Cancelled if status.message().contains("Timeout expired") => {}
                    _ => away.wait(self.cx, self.client, status).await?,
                },
            }
        }
    }

    /// What its processes have told. A node that cannot be asked has told nothing.
    async fn lines(&self, named: &JobRef) -> Vec<Line> {
        let request = self.client.ask(LogsRequest {
            r#ref: Some(named.clone()),
            generation: 1,
            ..LogsRequest::default()
        });
        let (mut lines, mut bytes) = (Vec::new(), 0);
        let Ok(stream) = self.client.jobs().logs(request).await else {
            return lines;
        };
        let mut stream = stream.into_inner();
        while let Ok(Some(part)) = stream.message().await {
            for text in &part.lines {
                bytes += text.len();
                // Time, stream and tag come before the text.
                lines.extend(text.splitn(4, ' ').nth(3).and_then(results::line));
            }
            if bytes > LOG_MAX {
                break;
            }
        }
        lines
    }

    async fn cancel(&self, named: &JobRef) -> Result<(), Failure> {
        let request = self.client.ask(CancelRequest {
            r#ref: Some(named.clone()),
        });
        let answer = self.client.jobs().cancel(request).await;
        answer.map_err(|status| self.client.failure(status))?;
        Ok(())
    }

    /// Forgets a job that is over.
    async fn delete(&self, named: &JobRef) {
        let request = || {
            self.client.ask(DeleteRequest {
                r#ref: Some(named.clone()),
            })
        };
        let mut answer = self.client.jobs().delete(request()).await;
        if answer.is_err() {
            sleep(AGAIN).await;
            answer = self.client.jobs().delete(request()).await;
        }
        match answer {
            Ok(_) => {}
            Err(status) if status.code() == Code::NotFound => {}
            Err(status) => self.cx.warn(format!(
                "job/{} is not deleted: {}; muster delete {}",
                named.name,
                self.client.failure(status),
                named.name
            )),
        }
        self.there.borrow_mut().retain(|one| one != named);
    }

    /// Ends and deletes what is left.
    pub(super) async fn clean_up(&self) {
        let left = self.there.borrow().clone();
        let ending = left.iter().map(async |named| {
            // One that was never accepted, or is over, cannot be cancelled.
            let _ = self.cancel(named).await;
            let _ = self.until_over(named, STOP).await;
            self.delete(named).await;
        });
        stream::iter(ending)
            .buffer_unordered(AT_ONCE)
            .collect::<Vec<()>>()
            .await;
    }
}

/// One line about one job.
fn told(trial: &Trial) -> String {
    use check::{Own, Together};
    let names: Vec<&str> = { trial.members.iter() }
        .map(|member| member.node.as_str())
        .collect();
    let wrong = trial.members.iter().find_map(|member| {
        let how = match &member.own {
            Own::Right { .. } => return None,
            Own::Wrong(how) => format!("matmul is wrong: {how}"),
            Own::Failed(how) => format!("matmul fails: {how}"),
            Own::Silent => "matmul has no result in time".to_owned(),
            Own::Unknown(why) => format!("not known: {why}"),
        };
        Some(format!("{}: {how}", member.node))
    });
    let together = match &trial.together {
        Together::Right { bytes_per_second } => {
            format!("well, {}/s", words::bytes(*bytes_per_second))
        }
        Together::NotTried => "well".to_owned(),
        Together::Wrong(how) => format!("all-reduce is wrong: {how}"),
        Together::Failed(how) => format!("all-reduce fails: {how}"),
        Together::Silent => "all-reduce has no result in time".to_owned(),
    };
    format!("  {}: {}", names.join(" + "), wrong.unwrap_or(together))
}
