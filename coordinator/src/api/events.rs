//! `muster.v1.EventService`.

use std::sync::Arc;

use muster_core::{
    fleet::Event,
    id::{JobName, NodeName, label_error},
};
use muster_handle::board;
use muster_proto::{convert::jobs as wire, limits::PAGE_MAX, v1};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::{
    authorize::rights,
    context::Context,
    feed::{Feed, Out},
    nodes::node_name,
    page, status,
};
use crate::trust::{Rights, Scope};

#[derive(Clone, Debug)]
pub(crate) struct Events(pub Context);

#[tonic::async_trait]
impl v1::event_service_server::EventService for Events {
    async fn list(
        &self,
        request: Request<v1::ListEventsRequest>,
    ) -> Result<Response<v1::ListEventsResponse>, Status> {
        let mut rights = rights(&request)?;
        let request = request.into_inner();
        let about =
            About::read(&mut rights, &request.namespace, &request.job, &request.node).await?;
        let after = match request.page_token.as_str() {
            "" => 0,
            token => token.parse().map_err(|_| page::bad_token())?,
        };
        let events = self.0.handle.events();
        let events = events.borrow();
        let items = events
            .after(after)
            .filter(|event| about.covers(event))
            .map(|event| (event.sequence, wire::event(event)));
        let (events, next) = page::fill(page::size(request.page_size), items);
        let next_page_token = next
            .map(|sequence| sequence.to_string())
            .unwrap_or_default();
        Ok(Response::new(v1::ListEventsResponse {
            events,
            next_page_token,
        }))
    }

    type WatchStream = Feed<v1::WatchEventsResponse>;

    async fn watch(
        &self,
        request: Request<v1::WatchEventsRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let mut rights = rights(&request)?;
        let request = request.into_inner();
        let about =
            About::read(&mut rights, &request.namespace, &request.job, &request.node).await?;
        let events = self.0.handle.events();
        Ok(Response::new(self.0.feed(rights, "watch events", |out| {
            follow(events, about, request.after, out)
        })))
    }
}

/// The events that a client asked for. `None`: any.
#[derive(Debug)]
struct About {
    /// Events of jobs in other namespaces are nobody's business. Those of nodes alone are everybody's.
    scope: Scope,
    namespace: Option<String>,
    job: Option<JobName>,
    node: Option<NodeName>,
}

impl About {
    async fn read(
        rights: &mut Rights,
        namespace: &str,
        job: &str,
        node: &str,
    ) -> Result<Self, Status> {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        if let Some(message) = given(namespace).and_then(|text| label_error(&text)) {
            return Err(status::invalid("namespace", message));
        }
        let job = match given(job) {
            Some(name) => {
                if let Some(message) = label_error(&name) {
                    return Err(status::invalid("job", message));
                }
                let namespace =
                    given(namespace).unwrap_or_else(|| muster_core::spec::DEFAULT_NAMESPACE.into());
                Some(JobName { namespace, name })
            }
            None => None,
        };
        let node = given(node)
            .map(|name| node_name("node", &name))
            .transpose()?;
        let named = job.as_ref().map(|name| name.namespace.as_str());
        let namespace_of = named.or((!namespace.is_empty()).then_some(namespace));
        rights.may_touch(namespace_of).await?;
        Ok(Self {
            scope: rights.scope.clone(),
            namespace: given(namespace),
            job,
            node,
        })
    }

    fn covers(&self, event: &Event) -> bool {
        let job = event.job.as_ref().map(|(_, name)| name);
        job.is_none_or(|name| self.scope.has(&name.namespace))
            && self.job.as_ref().is_none_or(|wanted| job == Some(wanted))
            && self
                .namespace
                .as_ref()
                .is_none_or(|wanted| job.is_some_and(|name| name.namespace == *wanted))
            && self
                .node
                .as_ref()
                .is_none_or(|wanted| event.node.as_ref() == Some(wanted))
    }
}

/// Runs until the client or the engine is gone. A client that reads too slowly misses the events
/// that were dropped meanwhile.
async fn follow(
    mut events: watch::Receiver<board::Events>,
    about: About,
    mut after: u64,
    out: Out<v1::WatchEventsResponse>,
) {
    loop {
        // Takes at most one page at a time, so that the board is never held for long.
        let (new, last): (Vec<Arc<Event>>, u64) = {
            let ring = events.borrow_and_update();
            let new: Vec<_> = ring
                .after(after)
                .filter(|event| about.covers(event))
                .take(PAGE_MAX)
                .cloned()
                .collect();
            let last = if new.len() == PAGE_MAX {
                new[PAGE_MAX - 1].sequence
            } else {
                ring.last()
            };
            (new, last)
        };
        let more = new.len() == PAGE_MAX;
        for event in new {
            if out
                .send(Ok(v1::WatchEventsResponse {
                    event: Some(wire::event(&event)),
                }))
                .await
                .is_err()
            {
                return;
            }
        }
        // `after` may be a number of a store that was replaced, and lie ahead of all events. It
        // stays ahead.
        after = after.max(last);
        if more {
            continue;
        }
        tokio::select! {
            changed = events.changed() => if changed.is_err() { return },
            () = out.closed() => return,
        }
    }
}
