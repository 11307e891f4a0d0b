//! `muster.v1.AccessService`: certificates for tokens, and what the caller may do.

use std::sync::Arc;

use muster_core::id::label_error;
use muster_proto::v1;
use muster_rpc::{Caller, Identity, identity::Kind};
use tonic::{Code, Request, Response, Status};
use tracing::error;

use super::{
    authorize::{self, Kubernetes, allow},
    status,
};
use crate::{
    kubernetes::Access,
    store::kubernetes::Keeper,
    trust::{self, Certified, Host, JoinError, Joined, Scope, TokenError, Trust},
};

#[derive(Clone, Debug)]
pub(crate) struct Rights {
    pub(crate) trust: Option<Arc<Trust>>,
    pub(crate) access: Option<Arc<Access>>,
    pub(crate) keeper: Option<Keeper>,
}

#[tonic::async_trait]
impl v1::access_service_server::AccessService for Rights {
    async fn join(
        &self,
        request: Request<v1::JoinRequest>,
    ) -> Result<Response<v1::JoinResponse>, Status> {
        let note = authorize::rights(&request)?.note;
        let request = request.into_inner();
        let trust = self.trust()?.clone();
        // A token is used up on disk, and a slow disk must not hold up heartbeats.
        let join = {
            let trust = trust.clone();
            move || trust.join(&request.token, &request.name, &request.public_key)
        };
        let joined = tokio::task::spawn_blocking(join)
            .await
            .map_err(|e| Status::internal(format!("issue a certificate: {e}")))?;
        let joined = joined.map_err(refused)?;
        let joined = self.kept(trust, joined).await?;
        let issued = joined.certified;
        note.set_object(issued.principal.to_string());
        if issued.principal.kind == Kind::User {
            note.set_what("login");
        }
        Ok(Response::new(v1::JoinResponse {
            certificate: Some(certificate(issued)),
        }))
    }

    async fn renew(
        &self,
        request: Request<v1::RenewRequest>,
    ) -> Result<Response<v1::RenewResponse>, Status> {
        let rights = authorize::rights(&request)?;
        let Identity::Certified(principal) = rights.identity else {
            return Err(Status::permission_denied(
                "there is no certificate to renew",
            ));
        };
        let shown = request.extensions().get::<Caller>().and_then(Caller::shown);
        let instead = shown.map(|shown| shown.key);
        let (trust, key) = (self.trust()?.clone(), request.into_inner().public_key);
        // It is recorded on disk.
        let renew = move || trust.renew(&principal, &key, instead);
        let renewed = tokio::task::spawn_blocking(renew)
            .await
            .map_err(|e| Status::internal(format!("issue a certificate: {e}")))?;
        let issued = renewed.map_err(refused)?;
        Ok(Response::new(v1::RenewResponse {
            certificate: Some(certificate(issued)),
        }))
    }

    async fn who_am_i(
        &self,
        request: Request<v1::WhoAmIRequest>,
    ) -> Result<Response<v1::WhoAmIResponse>, Status> {
        let rights = authorize::rights(&request)?;
        let role = match (rights.role, &rights.host) {
            (Some(role), _) => role.word(),
            (None, Host::Only(_)) => "host",
            (None, _) => "",
        };
        Ok(Response::new(v1::WhoAmIResponse {
            identity: rights.identity.to_string(),
            role: role.to_owned(),
            proof: proof(&rights.identity).to_owned(),
            namespaces: match rights.scope {
                Scope::All => Vec::new(),
                Scope::Only(names) => names.into_iter().collect(),
            },
        }))
    }

    async fn can_i(
        &self,
        request: Request<v1::CanIRequest>,
    ) -> Result<Response<v1::CanIResponse>, Status> {
        let mut rights = authorize::rights(&request)?;
        let v1::CanIRequest { method, namespace } = request.into_inner();
        if let Some(why) = Some(&namespace)
            .filter(|name| !name.is_empty())
            .and_then(|name| label_error(name))
        {
            return Err(status::invalid("namespace", why));
        }
        let answer = self.may(&mut rights, &method, &namespace).await;
        // Without an answer of the API server nobody can say yes or no.
        if let Err(status) = &answer
            && status.code() == Code::Unavailable
        {
            return Err(status.clone());
        }
        Ok(Response::new(v1::CanIResponse {
            allowed: answer.is_ok(),
            reason: answer
                .err()
                .map(|status| status.message().to_owned())
                .unwrap_or_default(),
        }))
    }
}

impl Rights {
    async fn may(
        &self,
        rights: &mut trust::Rights,
        method: &str,
        namespace: &str,
    ) -> Result<(), Status> {
        let method = format!("muster.v1.{method}");
        let (_, _, kubernetes, _) = allow(rights, &method, self.access.as_ref()).await?;
        match (kubernetes, namespace) {
            // It was asked already.
            (Kubernetes::Once(_), _) if rights.asking.is_some() => Ok(()),
            (_, "") => rights.may_touch(None).await,
            (_, namespace) => rights.may_touch(Some(namespace)).await,
        }
    }

    /// Has the coordinators that stand by know of a join before its certificate is given: a token that was
    /// used up here could be used again there.
    async fn kept(&self, trust: Arc<Trust>, joined: Joined) -> Result<Joined, Status> {
        let Some(keeper) = &self.keeper else {
            return Ok(joined);
        };
        if keeper.keep().await {
            return Ok(joined);
        }
        // If this fails, the token stays used up, and nobody has anything for it.
        let undone = tokio::task::spawn_blocking(move || trust.take_back(&joined)).await;
        if let Ok(Err(e)) = undone {
            error!("give a token back: {e}");
        }
        Err(Status::unavailable(
            "the coordinator cannot keep this join safe now, so it gives no certificate; try again with the same token, and if that is not \
             known then, get a new one",
        ))
    }

    fn trust(&self) -> Result<&Arc<Trust>, Status> {
        self.trust.as_ref().ok_or_else(|| {
            Status::failed_precondition(
                "this coordinator has no certificate authority; on its machine run `muster-coordinator init`",
            )
        })
    }
}

/// How the caller has proven who it is.
fn proof(identity: &Identity) -> &'static str {
    match identity {
        Identity::Local { .. } => "kernel",
        Identity::Certified(_) => "certificate",
        Identity::Reviewed(_) => "kubernetes-token",
        Identity::Unknown | Identity::Anonymous => "",
    }
}

fn certificate(issued: Certified) -> v1::Certificate {
    v1::Certificate {
        chain_pem: issued.chain,
        authorities_pem: issued.authorities,
        principal: issued.principal.to_string(),
        not_before_us: issued.not_before_us,
        not_after_us: issued.not_after_us,
    }
}

fn refused(error: JoinError) -> Status {
    match error {
        JoinError::Trust(e) | JoinError::Token(TokenError::Trust(e)) => {
            // The caller need not know the coordinator's paths.
            error!("issue a certificate: {e}");
            Status::internal("the coordinator could not issue a certificate; its log says why")
        }
        JoinError::Key | JoinError::Name(_) | JoinError::NodeName(..) | JoinError::NoName => {
            Status::invalid_argument(error.to_string())
        }
        JoinError::Site => Status::failed_precondition(error.to_string()),
        JoinError::Token(_) | JoinError::OtherName(..) | JoinError::Taken(_) => {
            Status::permission_denied(error.to_string())
        }
    }
}
