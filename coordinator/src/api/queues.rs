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
        for queue in &mut queues {
            let seen = |name: &String| name == OTHERS || rights.scope.has(name);
            queue.namespaces.retain(seen);
        }
        let starts = match request.get_ref().start_estimates {
            true => self.starts(rights).await?,
            false => Vec::new(),
        };
        Ok(Response::new(v1::ListQueuesResponse { queues, starts }))
    }
}

impl Queues {
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
