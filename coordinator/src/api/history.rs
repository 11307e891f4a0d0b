//! `muster.v1.HistoryService`.

use std::sync::Arc;

use muster_core::{
    fleet::{
        history::{HistoryRecord, Wanted},
        view::JobView,
    },
    id::{JobName, label_error},
};
use muster_proto::{convert::history as wire, v1};
use tonic::{Request, Response, Status};

use super::{authorize::rights, context::Context, page, status};

#[derive(Clone, Debug)]
pub(crate) struct History(pub Context);

/// The place of a record in the list: first jobs that are not over, by name, then records, by number from above.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Live(JobName),
    Over(u64),
}

#[tonic::async_trait]
impl v1::history_service_server::HistoryService for History {
    async fn list(
        &self,
        request: Request<v1::ListHistoryRequest>,
    ) -> Result<Response<v1::ListHistoryResponse>, Status> {
        let mut rights = rights(&request)?;
        let request = request.into_inner();
        let now = self.0.handle.now();
        let wanted = wire::wanted(&request, now).map_err(status::malformed)?;
        rights.may_touch(wanted.namespace.as_deref()).await?;
        let after = match request.page_token.as_str() {
            "" => None,
            token => Some(read_token(token).ok_or_else(page::bad_token)?),
        };
        let scope = rights.scope.clone();
        let may_see = |name: &JobName| scope.has(&name.namespace);
        // The engine waits while somebody looks at a board, so look, and let go.
        let live = match &after {
            Some(Place::Over(_)) => Vec::new(),
            _ if !request.include_live => Vec::new(),
            Some(Place::Live(name)) => self.live(Some(name), &wanted),
            None => self.live(None, &wanted),
        };
        let live = live
            .iter()
            .filter(|job| may_see(&job.record.name))
            .map(|job| {
                let record = job.record.left(now, job.doubted_since);
                (Place::Live(record.name.clone()), record)
            });
        let live = live.filter(|(_, record)| wanted.takes(record));
        let before = match after {
            Some(Place::Over(number)) => Some(number),
            _ => None,
        };
        let over = self.0.handle.history();
        let over: Vec<Arc<HistoryRecord>> = {
            let board = over.borrow();
            let fits = |record: &&Arc<HistoryRecord>| may_see(&record.name) && wanted.takes(record);
            // One more shows whether there are more.
            let most = page::size(request.page_size) + 1;
            board
                .before(before)
                .filter(fits)
                .take(most)
                .cloned()
                .collect()
        };
        let over = over
            .iter()
            .map(|record| (Place::Over(record.number), wire::record(record)));
        let items = live
            .map(|(place, record)| (place, wire::record(&record)))
            .chain(over);
        let (records, next) = page::fill(page::size(request.page_size), items);
        Ok(Response::new(v1::ListHistoryResponse {
            records,
            next_page_token: next.map(|place| place.token()).unwrap_or_default(),
        }))
    }
}

impl History {
    /// Jobs that are not over, of the wanted namespace.
    fn live(&self, after: Option<&JobName>, wanted: &Wanted) -> Vec<Arc<JobView>> {
        let jobs = self.0.handle.jobs();
        let board = jobs.borrow();
        let namespace = wanted.namespace.as_ref();
        let all = board.after(after).map(|(_, job)| job);
        all.filter(|job| !job.record.phase.is_over())
            .filter(|job| namespace.is_none_or(|it| job.record.name.namespace == *it))
            .cloned()
            .collect()
    }
}

impl Place {
    fn token(&self) -> String {
        match self {
            Place::Live(name) => name.to_string(),
            Place::Over(number) => number.to_string(),
        }
    }
}

fn read_token(token: &str) -> Option<Place> {
    let Some((namespace, name)) = token.split_once('/') else {
        return token.parse().ok().map(Place::Over);
    };
    let is_well_formed = label_error(namespace).is_none() && label_error(name).is_none();
    is_well_formed.then(|| {
        Place::Live(JobName {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_written() {
        let name = JobName {
            namespace: "team-a".into(),
            name: "digits".into(),
        };
        for place in [Place::Live(name), Place::Over(17)] {
            assert_eq!(read_token(&place.token()), Some(place));
        }
        for bad in ["", "x", "-1", "a/B", "a/b/c", "/"] {
            assert_eq!(read_token(bad), None, "{bad}");
        }
    }
}
