//! `muster.v1.NotificationService`.

use std::{collections::BTreeSet, sync::Arc};

use muster_core::{
    fleet::notify::{Answered, Kind, Outbox, Rules},
    id::label_error,
};
use muster_proto::v1;
use tonic::{Request, Response, Status};

use super::{authorize::rights, context::Context};
use crate::notify::{Desk, Receiver};

#[derive(Clone, Debug)]
pub(crate) struct Notifications {
    pub(crate) context: Context,
    /// `None`: the operator has named no receivers.
    pub(crate) desk: Option<Arc<Desk>>,
}

#[tonic::async_trait]
impl v1::notification_service_server::NotificationService for Notifications {
    async fn list_receivers(
        &self,
        _request: Request<v1::ListReceiversRequest>,
    ) -> Result<Response<v1::ListReceiversResponse>, Status> {
        let outbox = self.context.handle.outbox().borrow().clone();
        let desk = self.desk.iter();
        let receivers = desk.flat_map(|desk| {
            let outbox = &outbox;
            desk.receivers().map(|one| shown(desk, one, outbox))
        });
        Ok(Response::new(v1::ListReceiversResponse {
            receivers: receivers.collect(),
        }))
    }

    async fn list_open(
        &self,
        request: Request<v1::ListOpenRequest>,
    ) -> Result<Response<v1::ListOpenResponse>, Status> {
        let mut rights = rights(&request)?;
        let namespace = request.into_inner().namespace;
        let namespace = (!namespace.is_empty()).then_some(namespace);
        if let Some(why) = namespace.as_deref().and_then(label_error) {
            return Err(Status::invalid_argument(format!("namespace: {why}")));
        }
        rights.may_touch(namespace.as_deref()).await?;
        let desk = self.desk.iter();
        let open = desk.flat_map(|desk| {
            desk.receivers().flat_map(|receiver| {
                let names = desk.rules().open.of(&receiver.name).into_iter();
                names.map(|name| v1::Open {
                    name,
                    form: receiver.form().into(),
                })
            })
        });
        Ok(Response::new(v1::ListOpenResponse {
            open: open.collect(),
        }))
    }

    async fn test_receiver(
        &self,
        request: Request<v1::TestReceiverRequest>,
    ) -> Result<Response<v1::TestReceiverResponse>, Status> {
        let rights = rights(&request)?;
        let name = request.into_inner().name;
        let Some(desk) = &self.desk else {
            return Err(Status::failed_precondition(
                "this coordinator tells nobody: start it with --notify FILE (docs/notifications.md)",
            ));
        };
        let Some(receiver) = desk.receiver(&name) else {
            let known: Vec<&str> = desk.receivers().map(|one| one.name.as_str()).collect();
            let known = known.join(", ");
            return Err(Status::not_found(format!(
                "there is no receiver {name:?}; there are {known}"
            )));
        };
        rights.note.set_object(format!("receiver/{name}"));
        let tried = desk.test(receiver, self.context.handle.now()).await;
        Ok(Response::new(v1::TestReceiverResponse {
            delivered: tried.answered == Answered::Delivered,
            answer: tried.said,
        }))
    }
}

fn shown(desk: &Desk, receiver: &Receiver, outbox: &Outbox) -> v1::Receiver {
    let [figures, of_jobs] = [false, true].map(|of_jobs| desk.figures(&receiver.name, of_jobs));
    let waiting = outbox.of(&receiver.name, false);
    let oldest = waiting.clone().map(|message| message.first.0).min();
    let (failed_at, error) = figures
        .failing
        .map(|(at, why)| (at.0, why))
        .unwrap_or_default();
    v1::Receiver {
        name: receiver.name.clone(),
        form: receiver.form().into(),
        address: receiver.shown(),
        kinds: kinds(desk.rules(), &receiver.name),
        waiting: u32::try_from(waiting.count()).unwrap_or(u32::MAX),
        oldest_unix_us: oldest.unwrap_or_default(),
        dropped: outbox
            .dropped
            .get(&receiver.name)
            .copied()
            .unwrap_or_default(),
        delivered: figures.delivered + of_jobs.delivered,
        failed: figures.failed + of_jobs.failed,
        last_delivered_unix_us: figures.last_delivered.unwrap_or_default().0,
        last_error: error,
        last_error_unix_us: failed_at,
        open_to_jobs: desk.rules().open.of(&receiver.name),
        last_error_of_jobs: of_jobs.failing.map(|(_, why)| why).unwrap_or_default(),
        dropped_of_jobs: { outbox.dropped_of_jobs.get(&receiver.name) }
            .copied()
            .unwrap_or_default(),
    }
}

/// What the rules tell this receiver of.
fn kinds(rules: &Rules, receiver: &str) -> Vec<String> {
    let own = rules
        .rules
        .iter()
        .filter(|rule| rule.receivers.contains(receiver));
    let kinds: BTreeSet<Kind> = own.flat_map(|rule| rule.on.iter().copied()).collect();
    kinds
        .into_iter()
        .map(|kind| kind.word().to_owned())
        .collect()
}
