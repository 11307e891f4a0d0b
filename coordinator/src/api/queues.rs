//! `muster.v1.QueueService`.

use std::collections::BTreeSet;

use muster_core::{
    fleet::{Request as FleetRequest, queues::OTHERS},
    id::JobName,
};
use muster_proto::{
    convert::{jobs::job_ref, queues as wire, start_estimate},
    v1,
};
use tonic::{Request, Response, Status};

use super::{authorize::rights, context::Context, status};
use crate::trust::Rights;

#[derive(Clone, Debug)]
pub(crate) struct Queues(pub Context);

#[tonic::async_trait]
impl v1::queue_service_server::QueueService for Queues {
    async fn list(
        &self,
        request: Request<v1::ListQueuesRequest>,
    ) -> Result<Response<v1::ListQueuesResponse>, Status> {
        let rights = &rights(&request)?;
        let answer = self
            .0
            .handle
            .request(rights.actor(""), FleetRequest::Queues)
            .await
            .map_err(status::no_answer)?;
        let mut queues: Vec<v1::Queue> = status::queues(answer)?.iter().map(wire::queue).collect();
        let (order, fair_share) = self.of_shares(rights, request.get_ref(), &queues).await?;
        for queue in &mut queues {
            let seen = |name: &String| name == OTHERS || rights.scope.has(name);
            queue.namespaces.retain(seen);
        }
        let starts = match request.get_ref().start_estimates {
            true => self.starts(rights).await?,
            false => Vec::new(),
        };
        Ok(Response::new(v1::ListQueuesResponse {
            queues,
            starts,
            order,
            fair_share,
        }))
    }
}

impl Queues {
    /// In which order the jobs that wait choose, and what everybody has used: as far as it is asked for, and as far as the caller may see it.
    async fn of_shares(
        &self,
        rights: &Rights,
        asked: &v1::ListQueuesRequest,
        queues: &[v1::Queue],
    ) -> Result<(Vec<v1::JobRef>, Option<v1::FairShare>), Status> {
        let handle = &self.0.handle;
        let mut order = Vec::new();
        if asked.order {
            let answer = handle.request(rights.actor(""), FleetRequest::Order).await;
            let jobs = status::order(answer.map_err(status::no_answer)?)?;
            let seen = jobs.iter().filter(|job| rights.scope.has(&job.namespace));
            order.extend(seen.map(job_ref));
        }
        if !asked.shares {
            return Ok((order, None));
        }
        let answer = handle.request(rights.actor(""), FleetRequest::Shares).await;
        let shares = status::shares(answer.map_err(status::no_answer)?)?;
        let fair_share = shares.map(|shares| {
            let shares = shares.iter().map(wire::share).collect();
            v1::FairShare {
                shares: visible(shares, queues, |namespace| rights.scope.has(namespace)),
            }
        });
        Ok((order, fair_share))
    }

    /// When the jobs that wait will start, of those that the caller may see.
    async fn starts(&self, rights: &Rights) -> Result<Vec<v1::JobStart>, Status> {
        let asked = self
            .0
            .handle
            .request(rights.actor(""), FleetRequest::Starts);
        let starts = status::starts(asked.await.map_err(status::no_answer)?)?;
        let sees = |job: &JobName| rights.scope.has(&job.namespace);
        let seen = starts.iter().filter(|(job, _)| sees(job));
        let seen = seen.map(|(job, start)| v1::JobStart {
            r#ref: Some(job_ref(job)),
            start: Some(start_estimate::start(start, sees)),
        });
        Ok(seen.collect())
    }
}

/// What somebody may see who sees the jobs of some namespaces: these namespaces with their users, all queues as in the list of queues, and the
/// users of those queues whose namespaces he all sees.
fn visible(
    shares: Vec<v1::Share>,
    queues: &[v1::Queue],
    sees: impl Fn(&str) -> bool,
) -> Vec<v1::Share> {
    let whole = queues
        .iter()
        .filter(|queue| queue.namespaces.iter().all(|name| sees(name)));
    let whole: BTreeSet<&str> = whole.map(|queue| queue.name.as_str()).collect();
    let is_seen = |share: &v1::Share| match share.queue.is_empty() {
        true => sees(&share.namespace),
        false => share.user.is_none() || whole.contains(share.queue.as_str()),
    };
    shares.into_iter().filter(is_seen).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(queue: &str, namespace: &str, user: Option<&str>) -> v1::Share {
        v1::Share {
            queue: queue.into(),
            namespace: namespace.into(),
            user: user.map(str::to_owned),
            ..v1::Share::default()
        }
    }

    fn queue(name: &str, namespaces: &[&str]) -> v1::Queue {
        v1::Queue {
            name: name.into(),
            namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
            ..v1::Queue::default()
        }
    }

    #[test]
    fn who_sees_some_namespaces_sees_their_users_only() {
        let all = vec![
            share("", "a", None),
            share("", "a", Some("ann")),
            share("", "b", None),
            share("", "b", Some("ben")),
        ];
        assert_eq!(visible(all.clone(), &[], |name| name == "a"), all[..2]);
        assert_eq!(visible(all.clone(), &[], |_| true), all);
    }

    #[test]
    fn users_of_a_queue_are_seen_by_who_sees_all_its_namespaces() {
        let queues = [queue("both", &["a", "b"]), queue("rest", &["a", OTHERS])];
        let all = vec![
            share("both", "", None),
            share("both", "", Some("ben")),
            share("rest", "", None),
            share("rest", "", Some("carl")),
            share("gone", "", Some("dan")),
        ];
        let seen = |names: &[&str]| {
            let shares = visible(all.clone(), &queues, |name| names.contains(&name));
            let users = shares.into_iter().filter_map(|share| share.user);
            users.collect::<Vec<String>>()
        };
        assert!(seen(&["a"]).is_empty());
        assert_eq!(seen(&["a", "b"]), ["ben"]);
        assert_eq!(visible(all.clone(), &queues, |_| false).len(), 2);
    }
}
