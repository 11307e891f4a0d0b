//! `muster.v1.NodeService`.

use std::sync::Arc;

use muster_core::{
    fleet::{
        Actor, Request as FleetRequest,
        node_list::{Seen, Wanted, find},
        view::NodeView,
    },
    id::{NodeName, node_name_error},
};
use muster_proto::{
    convert::{jobs as wire, node_list::sums},
    v1,
};
use tonic::{Request, Response, Status};

use super::{
    authorize::rights,
    context::Context,
    feed::Feed,
    page, status,
    watch::{Kind, follow},
};
use crate::trust::Rights;

#[derive(Clone, Debug)]
pub(crate) struct Nodes(pub Context);

#[tonic::async_trait]
impl v1::node_service_server::NodeService for Nodes {
    async fn list(
        &self,
        request: Request<v1::ListNodesRequest>,
    ) -> Result<Response<v1::ListNodesResponse>, Status> {
        let rights = rights(&request)?;
        let request = request.into_inner();
        let after = match request.page_token.as_str() {
            "" => None,
            token => Some(node_name("page_token", token).map_err(|_| page::bad_token())?),
        };
        if let Some(search) = request.search {
            if after.is_some() {
                let why = "must be empty with a search, which has skip";
                return Err(status::invalid("page_token", why));
            }
            let found = self.search(&rights, &search, page::size(request.page_size));
            return Ok(Response::new(found));
        }
        let nodes = self.0.handle.nodes();
        let nodes = nodes.borrow();
        let items = nodes
            .after(after.as_ref())
            .map(|(name, view)| (name, self.0.usages.of_node(shown(&rights, view))));
        let (nodes, next) = page::fill(page::size(request.page_size), items);
        let next_page_token = next.map(|name| name.to_string()).unwrap_or_default();
        Ok(Response::new(v1::ListNodesResponse {
            nodes,
            next_page_token,
            sums: None,
        }))
    }

    async fn get(
        &self,
        request: Request<v1::GetNodeRequest>,
    ) -> Result<Response<v1::GetNodeResponse>, Status> {
        let rights = rights(&request)?;
        let name = node_name("name", &request.into_inner().name)?;
        let view = self.0.handle.node(&name).ok_or_else(|| no_such(&name))?;
        Ok(Response::new(v1::GetNodeResponse {
            node: Some(self.0.usages.of_node(shown(&rights, &view))),
        }))
    }

    type WatchStream = Feed<v1::WatchNodesResponse>;

    async fn watch(
        &self,
        request: Request<v1::WatchNodesRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let rights = rights(&request)?;
        let name = match request.into_inner().name.as_str() {
            "" => None,
            name => Some(node_name("name", name)?),
        };
        if let Some(name) = &name
            && self.0.handle.node(name).is_none()
        {
            return Err(no_such(name));
        }
        let usages = self.0.usages.clone();
        let caller = rights.clone();
        let kind = Kind {
            wanted: Box::new(move |key: &NodeName| name.as_ref().is_none_or(|name| name == key)),
            identity: |view: &NodeView| view.record.name.as_str(),
            changed: Box::new(move |view| v1::WatchNodesResponse {
                node: Some(usages.of_node(shown(&rights, view))),
                deleted: false,
            }),
            gone: |name, _| v1::WatchNodesResponse {
                node: Some(v1::Node {
                    name: name.to_string(),
                    ..v1::Node::default()
                }),
                deleted: true,
            },
        };
        let nodes = self.0.handle.nodes();
        Ok(Response::new(self.0.feed(caller, "watch nodes", |out| {
            follow(nodes, kind, out)
        })))
    }

    async fn cordon(
        &self,
        request: Request<v1::CordonRequest>,
    ) -> Result<Response<v1::CordonResponse>, Status> {
        let rights = rights(&request)?;
        let v1::CordonRequest { name, reason, by } = request.into_inner();
        let actor = rights.actor(&by);
        let node = concerned(&rights, &name)?;
        let view = self
            .ask_node(actor, FleetRequest::Cordon { node, reason })
            .await?;
        Ok(Response::new(v1::CordonResponse { node: Some(view) }))
    }

    async fn uncordon(
        &self,
        request: Request<v1::UncordonRequest>,
    ) -> Result<Response<v1::UncordonResponse>, Status> {
        let rights = rights(&request)?;
        let actor = rights.actor("");
        let node = concerned(&rights, &request.into_inner().name)?;
        let view = self
            .ask_node(actor, FleetRequest::Uncordon { node })
            .await?;
        Ok(Response::new(v1::UncordonResponse { node: Some(view) }))
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteNodeRequest>,
    ) -> Result<Response<v1::DeleteNodeResponse>, Status> {
        let rights = rights(&request)?;
        let actor = rights.actor("");
        let node = concerned(&rights, &request.into_inner().name)?;
        let answer = self
            .0
            .handle
            .request(actor, FleetRequest::DeleteNode { node })
            .await
            .map_err(status::no_answer)?;
        status::done(answer)?;
        Ok(Response::new(v1::DeleteNodeResponse {}))
    }
}

/// A node, without the names of jobs and pods that are none of the caller's business.
fn shown(rights: &Rights, view: &NodeView) -> v1::Node {
    let mut node = wire::node(view);
    for run in &mut node.runs {
        if !rights.scope.has(&run.namespace) {
            (run.namespace, run.job) = Default::default();
        }
    }
    for mark in &mut node.marks {
        if !rights.scope.has(&mark.namespace) {
            (mark.namespace, mark.job) = Default::default();
        }
    }
    let holders = node.gpu_holders.iter_mut().flat_map(|all| &mut all.holders);
    for holder in holders {
        if !rights.scope.has(&holder.namespace) {
            (holder.namespace, holder.pod) = Default::default();
        }
    }
    node
}

impl Nodes {
    /// The part of the nodes that a person looks at. Only its nodes become messages.
    fn search(
        &self,
        rights: &Rights,
        search: &v1::NodeSearch,
        size: usize,
    ) -> v1::ListNodesResponse {
        let may_see = |namespace: &str| rights.scope.has(namespace);
        let wanted = Wanted {
            text: &search.text,
            skip: search.skip as usize,
            most: size,
        };
        // The engine waits until this is let go, so nothing is searched before.
        let all: Vec<Arc<NodeView>> = {
            let nodes = self.0.handle.nodes();
            let nodes = nodes.borrow();
            nodes.after(None).map(|(_, view)| view.clone()).collect()
        };
        let seen = all.iter().map(|view| Seen {
            view,
            may_see: &may_see,
        });
        let found = find(seen, wanted);
        let shown = found
            .nodes
            .iter()
            .map(|seen| ((), self.0.usages.of_node(shown(rights, seen.view))));
        v1::ListNodesResponse {
            nodes: page::fill(size, shown).0,
            next_page_token: String::new(),
            sums: Some(sums(&found)),
        }
    }

    async fn ask_node(&self, actor: Actor, request: FleetRequest) -> Result<v1::Node, Status> {
        let answer = self
            .0
            .handle
            .request(actor, request)
            .await
            .map_err(status::no_answer)?;
        Ok(wire::node(&*status::node(answer)?))
    }
}

/// The node that a request is to change.
fn concerned(rights: &Rights, name: &str) -> Result<NodeName, Status> {
    let node = node_name("name", name)?;
    rights.note.set_object(format!("node/{node}"));
    Ok(node)
}

pub(crate) fn node_name(field: &str, text: &str) -> Result<NodeName, Status> {
    match node_name_error(text) {
        Some(message) => Err(status::invalid(field, message)),
        None => Ok(NodeName::from(text)),
    }
}

fn no_such(name: &NodeName) -> Status {
    status::refused(&muster_core::fleet::Refusal::NoSuchNode(name.clone()))
}
