//! `muster.v1.QueueService`.

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
        let sees = |share: &v1::Share| match share.queue.is_empty() {
            true => rights.scope.has(&share.namespace),
            false => share.user.is_none() || sees_all_of(rights, queues, &share.queue),
        };
        let fair_share = shares.map(|shares| v1::FairShare {
            shares: shares.iter().map(wire::share).filter(sees).collect(),
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

/// Whether the caller may see all namespaces whose jobs are in this queue.
fn sees_all_of(rights: &Rights, queues: &[v1::Queue], name: &str) -> bool {
    let mut named = queues.iter().filter(|queue| queue.name == name);
    named.all(|queue| {
        queue
            .namespaces
            .iter()
            .all(|namespace| rights.scope.has(namespace))
    })
}
