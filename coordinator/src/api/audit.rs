//! `muster.v1.AuditService`: the entries of the audit trail.

use std::sync::Arc;

use muster_proto::{limits::PAGE_MAX, v1};
use muster_rpc::credentials::now_us;
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};
use tracing::error;

use super::{authorize::rights, context::Context, feed::Feed};
use crate::audit::{Entry, Files};

#[derive(Clone, Debug)]
pub(crate) struct Audit {
    context: Context,
    files: Files,
    /// One caller at a time: all entries take some 60 MB.
    one: Arc<Semaphore>,
}

impl Audit {
    pub(crate) fn new(context: Context, files: Files) -> Self {
        Self {
            context,
            files,
            one: Arc::new(Semaphore::new(1)),
        }
    }
}

#[tonic::async_trait]
impl v1::audit_service_server::AuditService for Audit {
    type ListStream = Feed<v1::ListAuditResponse>;

    async fn list(
        &self,
        request: Request<v1::ListAuditRequest>,
    ) -> Result<Response<Self::ListStream>, Status> {
        let rights = rights(&request)?;
        let v1::ListAuditRequest { within_us, limit } = request.into_inner();
        let since_us = match within_us {
            0 => 0,
            within => now_us().saturating_sub(within),
        };
        let most = match limit {
            0 => usize::MAX,
            limit => usize::try_from(limit).unwrap_or(usize::MAX),
        };
        let permit = self.one.clone().acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        let files = self.files.clone();
        let read = move || (files.read(since_us, most), permit);
        let (entries, permit) = tokio::task::spawn_blocking(read)
            .await
            .map_err(|e| Status::internal(format!("read the audit trail: {e}")))?;
        let entries = entries.map_err(|e| {
            error!("read the audit trail: {e}");
            Status::internal("the coordinator could not read its audit trail; its log says why")
        })?;
        let feed = self.context.feed(rights, "audit", |out| async move {
            let _permit = permit;
            for entries in entries.chunks(PAGE_MAX) {
                let entries = entries.iter().map(entry).collect();
                let page = v1::ListAuditResponse { entries };
                if out.send(Ok(page)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(feed))
    }
}

fn entry(entry: &Entry) -> v1::AuditEntry {
    v1::AuditEntry {
        at_unix_us: entry.at_us,
        who: entry.who.clone(),
        from: entry.from.clone(),
        what: entry.what.clone(),
        object: entry.object.clone(),
        result: entry.result.word().to_owned(),
        code: entry.code.clone(),
        reason: entry.reason.clone(),
        count: entry.count,
    }
}
