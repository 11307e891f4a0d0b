//! A fake coordinator that gives the answers of the test, so that a test can produce any answer.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    process::{Command, Output, Stdio},
    sync::{Arc, Mutex},
};

use futures::stream::{self, BoxStream, StreamExt};
use muster_proto::v1::{
    access_service_server::*, history_service_server::*, job_service_server::*,
    node_service_server::*, notification_service_server::*, queue_service_server::*, *,
};
use muster_rpc::{
    gate::Open,
    listen::{Listener, Options},
};
use tonic::{Request, Response, Status, service::Routes};

type Answer<T> = Result<Response<T>, Status>;
type Answers<T> = Mutex<VecDeque<Result<T, Status>>>;
/// The messages that one connection streams before it ends.
type Stream<T> = Vec<Result<T, Status>>;

#[derive(Default)]
pub(crate) struct Cardboard {
    pub(crate) submit: Answers<SubmitResponse>,
    pub(crate) get: Answers<GetJobResponse>,
    pub(crate) list: Answers<ListJobsResponse>,
    pub(crate) nodes: Answers<ListNodesResponse>,
    pub(crate) queues: Answers<ListQueuesResponse>,
    pub(crate) watch: Answers<Stream<WatchJobsResponse>>,
    pub(crate) wait: Answers<WaitResponse>,
    pub(crate) logs: Answers<Stream<LogsResponse>>,
    /// A cancel without an answer here is refused; a scale is never answered.
    pub(crate) cancel: Answers<CancelResponse>,
    pub(crate) scale: Answers<ScaleResponse>,
    pub(crate) signal: Answers<SignalResponse>,
    pub(crate) stacks: Answers<StacksResponse>,
    pub(crate) history: Answers<ListHistoryResponse>,
    pub(crate) receivers: Answers<ListReceiversResponse>,
    pub(crate) tried: Answers<TestReceiverResponse>,
    pub(crate) open: Answers<ListOpenResponse>,
    /// What the caller may not do.
    pub(crate) forbidden: Vec<&'static str>,
    pub(crate) heard: Mutex<Vec<String>>,
}

impl Cardboard {
    fn next<T>(&self, heard: String, answers: &Answers<T>) -> Answer<T> {
        self.heard.lock().unwrap().push(heard);
        let next = answers.lock().unwrap().pop_front();
        next.unwrap_or_else(|| Err(Status::failed_precondition("the test has no more answers")))
            .map(Response::new)
    }

    fn next_stream<T: Send + 'static>(
        &self,
        heard: String,
        answers: &Answers<Stream<T>>,
    ) -> Answer<BoxStream<'static, Result<T, Status>>> {
        let items = self.next(heard, answers)?.into_inner();
        // A stream without an error at its end stays open, as a watch does.
        let stays = items.last().is_none_or(Result::is_ok);
        let stream = stream::iter(items);
        Ok(Response::new(if stays {
            stream.chain(stream::pending()).boxed()
        } else {
            stream.boxed()
        }))
    }
}

#[tonic::async_trait]
impl JobService for Cardboard {
    async fn submit(&self, request: Request<SubmitRequest>) -> Answer<SubmitResponse> {
        let request = request.into_inner();
        self.next(
            format!("submit {} {}", request.request_id, request.validate_only),
            &self.submit,
        )
    }
    async fn get(&self, request: Request<GetJobRequest>) -> Answer<GetJobResponse> {
        let named = request.into_inner().r#ref.unwrap_or_default();
        self.next(format!("get {}/{}", named.namespace, named.name), &self.get)
    }
    async fn list(&self, request: Request<ListJobsRequest>) -> Answer<ListJobsResponse> {
        let request = request.into_inner();
        self.next(
            format!("list {:?} {:?}", request.namespace, request.page_token),
            &self.list,
        )
    }
    type WatchStream = BoxStream<'static, Result<WatchJobsResponse, Status>>;
    async fn watch(&self, request: Request<WatchJobsRequest>) -> Answer<Self::WatchStream> {
        self.next_stream(
            format!("watch {:?}", request.into_inner().name),
            &self.watch,
        )
    }
    async fn scale(&self, _: Request<ScaleRequest>) -> Answer<ScaleResponse> {
        let answer = self.scale.lock().unwrap().pop_front();
        match answer {
            Some(answer) => answer.map(Response::new),
            None => std::future::pending().await,
        }
    }
    async fn cancel(&self, _: Request<CancelRequest>) -> Answer<CancelResponse> {
        let answer = self.cancel.lock().unwrap().pop_front();
        answer
            .unwrap_or_else(|| Err(Status::permission_denied("not yours")))
            .map(Response::new)
    }

    async fn signal(&self, request: Request<SignalRequest>) -> Answer<SignalResponse> {
        let request = request.into_inner();
        let heard = format!(
            "signal {} rank {:?} node {:?}",
            request.signal, request.rank, request.node
        );
        self.next(heard, &self.signal)
    }

    async fn stacks(&self, request: Request<StacksRequest>) -> Answer<StacksResponse> {
        let request = request.into_inner();
        let heard = format!("stacks rank {:?} node {:?}", request.rank, request.node);
        self.next(heard, &self.stacks)
    }

    async fn suspend(&self, _: Request<SuspendRequest>) -> Answer<SuspendResponse> {
        Err(Status::failed_precondition(
            "job default/digits is Succeeded and cannot be suspended or resumed",
        ))
    }

    async fn resume(&self, _: Request<ResumeRequest>) -> Answer<ResumeResponse> {
        Err(Status::failed_precondition(
            "job default/digits is Succeeded and cannot be suspended or resumed",
        ))
    }
    async fn delete(&self, _: Request<DeleteRequest>) -> Answer<DeleteResponse> {
        Err(Status::failed_precondition(
            "job default/digits is Running; cancel it first",
        ))
    }
    type LogsStream = BoxStream<'static, Result<LogsResponse, Status>>;
    async fn logs(&self, request: Request<LogsRequest>) -> Answer<Self::LogsStream> {
        let request = request.into_inner();
        let from: Vec<u64> = request
            .positions
            .iter()
            .map(|position| position.at)
            .collect();
        let heard = format!(
            "logs rank {:?} tail {:?} follow {} from {from:?}{}",
            request.rank,
            request.tail,
            request.follow,
            if request.raw { "" } else { " as text" }
        );
        let items = self.next(heard, &self.logs)?.into_inner();
        Ok(Response::new(stream::iter(items).boxed()))
    }
    async fn explain(&self, _: Request<ExplainRequest>) -> Answer<ExplainResponse> {
        Err(Status::not_found("job default/x not found"))
    }
    async fn environment(&self, _: Request<EnvironmentRequest>) -> Answer<EnvironmentResponse> {
        Err(Status::failed_precondition(
            "job default/x has no generation yet",
        ))
    }
    async fn wait(&self, request: Request<WaitRequest>) -> Answer<WaitResponse> {
        let request = request.into_inner();
        self.next(format!("wait {:?}", request.wait_for()), &self.wait)
    }
}

#[tonic::async_trait]
impl QueueService for Cardboard {
    async fn list(&self, request: Request<ListQueuesRequest>) -> Answer<ListQueuesResponse> {
        let heard = format!("queues, starts {}", request.into_inner().start_estimates);
        self.next(heard, &self.queues)
    }
}

#[tonic::async_trait]
impl HistoryService for Cardboard {
    async fn list(&self, request: Request<ListHistoryRequest>) -> Answer<ListHistoryResponse> {
        let ListHistoryRequest {
            namespace,
            name,
            node,
            phases,
            include_live,
            page_token,
            ..
        } = request.into_inner();
        let heard = format!(
            "history {namespace:?} {name:?} {node:?} {phases:?} live {include_live} from {page_token:?}"
        );
        self.next(heard, &self.history)
    }
}

#[tonic::async_trait]
impl NodeService for Cardboard {
    async fn list(&self, request: Request<ListNodesRequest>) -> Answer<ListNodesResponse> {
        let ListNodesRequest {
            page_size,
            page_token,
            search,
        } = request.into_inner();
        let search = search.map(|search| format!("{:?} after {}", search.text, search.skip));
        let heard = format!("nodes {page_size} {page_token:?} {search:?}");
        self.next(heard, &self.nodes)
    }

    async fn get(&self, _: Request<GetNodeRequest>) -> Answer<GetNodeResponse> {
        Err(Status::unimplemented("cardboard"))
    }

    type WatchStream = BoxStream<'static, Result<WatchNodesResponse, Status>>;
    async fn watch(&self, _: Request<WatchNodesRequest>) -> Answer<Self::WatchStream> {
        Err(Status::unimplemented("cardboard"))
    }

    async fn cordon(&self, _: Request<CordonRequest>) -> Answer<CordonResponse> {
        Err(Status::unimplemented("cardboard"))
    }

    async fn uncordon(&self, _: Request<UncordonRequest>) -> Answer<UncordonResponse> {
        Err(Status::unimplemented("cardboard"))
    }

    async fn delete(&self, _: Request<DeleteNodeRequest>) -> Answer<DeleteNodeResponse> {
        Err(Status::unimplemented("cardboard"))
    }
}

#[tonic::async_trait]
impl NotificationService for Cardboard {
    async fn list_receivers(
        &self,
        _: Request<ListReceiversRequest>,
    ) -> Answer<ListReceiversResponse> {
        self.next("receivers".into(), &self.receivers)
    }

    async fn list_open(&self, request: Request<ListOpenRequest>) -> Answer<ListOpenResponse> {
        let heard = format!("open {}", request.into_inner().namespace);
        self.next(heard, &self.open)
    }

    async fn test_receiver(
        &self,
        request: Request<TestReceiverRequest>,
    ) -> Answer<TestReceiverResponse> {
        let heard = format!("test {}", request.into_inner().name);
        self.next(heard, &self.tried)
    }
}

#[tonic::async_trait]
impl AccessService for Cardboard {
    async fn join(&self, _: Request<JoinRequest>) -> Answer<JoinResponse> {
        Err(Status::unimplemented("cardboard"))
    }

    async fn renew(&self, _: Request<RenewRequest>) -> Answer<RenewResponse> {
        Err(Status::unimplemented("cardboard"))
    }

    async fn who_am_i(&self, _: Request<WhoAmIRequest>) -> Answer<WhoAmIResponse> {
        Err(Status::unimplemented("cardboard"))
    }

    async fn can_i(&self, request: Request<CanIRequest>) -> Answer<CanIResponse> {
        let method = request.into_inner().method;
        Ok(Response::new(CanIResponse {
            allowed: !self.forbidden.contains(&method.as_str()),
            reason: String::new(),
        }))
    }
}

/// Serves until the returned runtime is dropped.
pub(crate) fn serve(cardboard: Cardboard) -> (tokio::runtime::Runtime, Arc<Cardboard>, SocketAddr) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let cardboard = Arc::new(cardboard);
    let listener = {
        let _entered = runtime.enter();
        Listener::open(SocketAddr::from(([127, 0, 0, 1], 0)), false).unwrap()
    };
    let address = listener.address();
    let services = Routes::new(JobServiceServer::from_arc(cardboard.clone()))
        .add_service(QueueServiceServer::from_arc(cardboard.clone()))
        .add_service(NodeServiceServer::from_arc(cardboard.clone()))
        .add_service(HistoryServiceServer::from_arc(cardboard.clone()))
        .add_service(NotificationServiceServer::from_arc(cardboard.clone()))
        .add_service(AccessServiceServer::from_arc(cardboard.clone()));
    let (accepting, serving) =
        listener.serve(Options::default(), Open, services, std::future::pending());
    runtime.spawn(accepting);
    runtime.spawn(serving);
    (runtime, cardboard, address)
}

/// The command line against this coordinator, without the settings of the person who runs the
/// tests.
pub(crate) fn muster(address: SocketAddr, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("MUSTER_")) {
        command.env_remove(name);
    }
    command
        .args(["--server", &format!("http://{address}")])
        .args(args)
        .stdin(Stdio::null());
    command
}

/// Exit code, stdout, stderr.
pub(crate) fn read(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code().expect("ended by itself"),
        text(output.stdout),
        text(output.stderr),
    )
}
