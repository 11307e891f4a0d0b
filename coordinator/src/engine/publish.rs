//! Publishes jobs, nodes, events and history on the boards that the API reads. It never decides, and it shows
//! nothing before that is stored.

use std::{collections::BTreeSet, sync::Arc};

use muster_core::{
    fleet::{Change, Event, commit::Write, notify::Outbox},
    id::{JobUid, NodeName, SessionId},
    time::Timestamp,
};
use muster_handle::board::{Events, History};
use tokio::sync::watch;
use tracing::{info, warn};

use super::{Engine, reports::Reports};

impl Engine {
    pub(super) fn show_job(&mut self, uid: JobUid) {
        if let Some(view) = self.fleet.job_view(&uid) {
            let name = view.record.name.clone();
            self.name_by_uid.insert(uid, name.clone());
            self.jobs.send_if_modified(|jobs| jobs.put(name, view));
        } else if let Some(name) = self.name_by_uid.remove(&uid) {
            self.jobs.send_if_modified(|jobs| {
                jobs.get(&name).is_some_and(|job| job.record.uid == uid) && jobs.remove(&name)
            });
        }
    }

    pub(super) fn show_node(&mut self, node: NodeName) {
        let view = self.fleet.node_view(&node);
        self.reports
            .see(&node, view.as_ref().map(|view| &view.report));
        self.nodes.send_if_modified(|nodes| match view {
            Some(view) => nodes.put(node, view),
            None => nodes.remove(&node),
        });
    }

    /// Keeps "last heard" true between changes of a node. The field changes with each heartbeat, so
    /// watchers are not told of it.
    pub(super) fn heard(&self, session: SessionId) {
        let now = Timestamp(self.clock.now_us());
        if let Some(session) = self.sessions.get(&session) {
            self.nodes.send_if_modified(|nodes| {
                nodes.amend(&session.node, |node| node.last_heard = Some(now));
                false
            });
        }
    }

    /// Publishes the whole board before the first input.
    pub(super) fn publish_all(&mut self, events: Vec<Event>) {
        let views = self.fleet.job_views();
        let jobs: BTreeSet<JobUid> = views.iter().map(|view| view.record.uid.clone()).collect();
        self.events
            .send_replace(Events::loaded(events, |uid| jobs.contains(uid)));
        self.name_by_uid.extend(
            views
                .iter()
                .map(|view| (view.record.uid.clone(), view.record.name.clone())),
        );
        self.jobs.send_modify(|jobs| {
            for view in views {
                jobs.put(view.record.name.clone(), view);
            }
        });
        let views = self.fleet.node_views();
        self.reports = Reports::loaded(&views);
        self.nodes.send_modify(|nodes| {
            for view in views {
                nodes.put(view.record.name.clone(), view);
            }
        });
    }
}

/// Shows what a commit has left of jobs that are over, and drops what it has dropped.
pub(super) fn publish_history(board: &watch::Sender<History>, writes: &[Write]) {
    let is_history =
        |write: &&Write| matches!(write.change, Change::PutHistory(_) | Change::DropHistory(_));
    if !writes.iter().any(|write| is_history(&write)) {
        return;
    }
    board.send_modify(|history| {
        for write in writes.iter().filter(is_history) {
            match &write.change {
                Change::PutHistory(record) => history.put(record.clone()),
                Change::DropHistory(number) => history.drop_to(*number),
                _ => {}
            }
        }
    });
}

/// Shows what waits to be sent to people, once it is stored.
pub(super) fn publish_outbox(board: &watch::Sender<Arc<Outbox>>, writes: &[Write]) {
    let outbox = writes.iter().rev().find_map(|write| match &write.change {
        Change::PutOutbox(outbox) => Some(outbox.clone()),
        _ => None,
    });
    if let Some(outbox) = outbox {
        board.send_replace(outbox);
    }
}

/// Logs and shows the events of a commit. The events of a deleted job are no longer kept for their job:
/// they are dropped by age, like events of no job.
pub(super) fn publish_events(board: &watch::Sender<Events>, writes: Vec<Write>) {
    let (mut new, mut deleted) = (Vec::new(), Vec::new());
    for write in writes {
        match write.change {
            Change::Event(event) => new.push(*event),
            Change::DeleteJob(uid) => deleted.push(uid),
            _ => {}
        }
    }
    if new.is_empty() && deleted.is_empty() {
        return;
    }
    for event in &new {
        let (job, node) = (
            event.job.as_ref().map(|(_, name)| name.to_string()),
            event.node.as_ref().map(ToString::to_string),
        );
        if event.warning {
            warn!(reason = event.reason, job, node, "{}", event.message);
        } else {
            info!(reason = event.reason, job, node, "{}", event.message);
        }
    }
    board.send_modify(|events| {
        new.into_iter().for_each(|event| events.push(event));
        deleted.iter().for_each(|job| events.release(job));
    });
}
