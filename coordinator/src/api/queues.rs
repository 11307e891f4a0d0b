//! `muster.v1.QueueService`.

use muster_core::fleet::{Request as FleetRequest, queues::OTHERS};
use muster_proto::{convert::queues as wire, v1};
use tonic::{Request, Response, Status};

use super::{authorize::rights, context::Context, status};

#[derive(Clone, Debug)]
pub(crate) struct Queues(pub Context);

#[tonic::async_trait]
impl v1::queue_service_server::QueueService for Queues {
    async fn list(
        &self,
        request: Request<v1::ListQueuesRequest>,
    ) -> Result<Response<v1::ListQueuesResponse>, Status> {
        let rights = rights(&request)?;
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
        Ok(Response::new(v1::ListQueuesResponse { queues }))
    }
}
