//! The gRPC services of `muster.v1`, a thin layer over the [`Handle`]. They check whether a request
//! is well-formed; the fleet decides everything else.
//!
//! | file | owns |
//! |---|---|
//! | `jobs`, `nodes`, `queues`, `events`, `history`, `notifications` | what users call |
//! | `context` | what every service needs |
//! | `job`, `ranks` | one job, and ranks of it, in requests and answers |
//! | `wait`, `explain`, `logs`, `signal`, `stacks` | the larger calls of the job service |
//! | `agents`, `connections` | the agents' sessions, and log reads, signals and questions through them |
//! | `looks` | the questions that the fleet has about ranks |
//! | `usages` | the last usage of each node |
//! | `feed`, `watch` | streams to clients: bounded, latest state, ended with a reason |
//! | `authorize` | what each method asks of its caller |
//! | `access` | certificates for tokens, and what the caller may do |
//! | `audit` | reading the audit trail |
//! | `reflection` | what the services and messages are, for programs that ask |
//! | `page`, `status` | pages of a list; reasons as gRPC statuses |

use std::sync::Arc;

use muster_handle::{handle::Handle, inbox::LookOrder};
use muster_proto::{
    limits::MESSAGE_MAX,
    v1::{
        access_service_server::AccessServiceServer, agent_service_server::AgentServiceServer,
        audit_service_server::AuditServiceServer, event_service_server::EventServiceServer,
        history_service_server::HistoryServiceServer, job_service_server::JobServiceServer,
        node_service_server::NodeServiceServer,
        notification_service_server::NotificationServiceServer,
        queue_service_server::QueueServiceServer,
    },
};
use muster_runtime::tasks::Scope;
use tokio::sync::mpsc;
use tonic::service::{Routes, RoutesBuilder};
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::{
    api::{authorize::Guard, context::Context},
    audit::{Files, Trail},
    kubernetes::{Access, Reviews},
    notify::Desk,
    store::kubernetes::Keeper,
    trust::Trust,
};

mod access;
mod agents;
mod audit;
mod authorize;
mod connections;
mod context;
mod environment;
mod events;
mod explain;
mod feed;
mod history;
mod job;
mod jobs;
mod logs;
mod looks;
mod nodes;
mod notifications;
mod page;
mod queues;
mod ranks;
mod reflection;
mod signal;
mod stacks;
mod status;
mod usages;
mod wait;
mod watch;

/// What a caller meets before any service.
pub(crate) struct Door {
    /// `None`: everybody is a user of this machine.
    pub(crate) trust: Option<Arc<Trust>>,
    /// `None`: no tokens of Kubernetes are taken.
    pub(crate) reviews: Option<Arc<Reviews>>,
    /// `None`: no users of Kubernetes are served.
    pub(crate) access: Option<Arc<Access>>,
    /// `Some`: the trust folder is kept elsewhere too.
    pub(crate) keeper: Option<Keeper>,
    pub(crate) trail: Trail,
    /// `None`: nobody is told of anything.
    pub(crate) desk: Option<Arc<Desk>>,
}

/// All services, what decides who may call them, and the reporter that takes them out of service.
pub(crate) async fn routes(
    handle: Handle,
    scope: Scope,
    door: Door,
    entries: Files,
    looks: mpsc::Receiver<LookOrder>,
) -> (Routes, Guard, Health) {
    let Door {
        trust,
        reviews,
        access,
        keeper,
        trail,
        desk,
    } = door;
    let guard = Guard {
        trust: trust.clone(),
        reviews,
        access: access.clone(),
        trail: trail.clone(),
    };
    let context = Context {
        trust: trust.clone(),
        trail,
        handle,
        scope,
        connections: Arc::default(),
        usages: Arc::default(),
    };
    looks::answer(&context, looks);
    let (reporter, health) = tonic_health::server::health_reporter();
    let health_handle = Health(reporter);
    health_handle.set(ServingStatus::Serving).await;

    let mut routes = RoutesBuilder::default();
    macro_rules! add {
        ($server:ident, $service:expr) => {
            routes.add_service(
                $server::new($service)
                    .max_decoding_message_size(MESSAGE_MAX)
                    .max_encoding_message_size(MESSAGE_MAX),
            )
        };
    }
    add!(JobServiceServer, jobs::Jobs(context.clone()));
    add!(NodeServiceServer, nodes::Nodes(context.clone()));
    add!(EventServiceServer, events::Events(context.clone()));
    add!(QueueServiceServer, queues::Queues(context.clone()));
    add!(HistoryServiceServer, history::History(context.clone()));
    let notifications = notifications::Notifications {
        context: context.clone(),
        desk,
    };
    add!(NotificationServiceServer, notifications);
    let audit = audit::Audit::new(context.clone(), entries);
    add!(AuditServiceServer, audit);
    add!(AgentServiceServer, agents::Agents(context));
    let rights = access::Rights {
        trust,
        access,
        keeper,
    };
    add!(AccessServiceServer, rights);
    routes.add_service(health);
    reflection::add(&mut routes);
    (routes.routes(), guard, health_handle)
}

/// `grpc.health.v1`: the whole server (the empty name) and each service have the same status.
#[derive(Clone, Debug)]
pub struct Health(HealthReporter);

impl Health {
    pub async fn set(&self, status: ServingStatus) {
        for service in [
            "",
            "muster.v1.JobService",
            "muster.v1.NodeService",
            "muster.v1.EventService",
            "muster.v1.AgentService",
            "muster.v1.AccessService",
            "muster.v1.AuditService",
            "muster.v1.HistoryService",
            "muster.v1.NotificationService",
            "muster.v1.QueueService",
        ] {
            self.0.set_service_status(service, status).await;
        }
    }
}
