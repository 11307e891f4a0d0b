//! Tokens, and who may do what.

use std::time::Duration;

use muster_coordinator::trust::now_us;
use serde_json::{Value, json};

use super::{
    State,
    wire::{Answer, failure},
};

pub(crate) const AUDIENCE: &str = "muster-coordinator.muster-system";
pub(crate) const AGENTS: &str = "muster-system/muster-agent";

const HOUR: Duration = Duration::from_secs(3_600);

/// Whom a token is of.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub user: String,
    pub groups: Vec<String>,
    pub extra: Value,
}

/// A token that the cluster has made.
#[derive(Clone, Debug)]
pub(crate) struct Minted {
    pub holder: Holder,
    pub audiences: Vec<String>,
    pub expires_us: u64,
}

/// A line of the cluster's rules. `*` and, for the namespace, the empty text mean all.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    /// A user, or a group as `group:NAME`.
    pub who: String,
    pub verb: &'static str,
    /// With its subresource, as `musterjobs/log`.
    pub resource: &'static str,
    pub namespace: &'static str,
}

impl Holder {
    /// The pod of the agents on this node.
    pub(crate) fn agent(node: &str) -> Self {
        Self::pod(AGENTS, node)
    }

    /// A pod of the account `NAMESPACE/NAME` on this node.
    pub(crate) fn pod(account: &str, node: &str) -> Self {
        let (namespace, name) = account.split_once('/').unwrap();
        let key = |name: &str| format!("authentication.kubernetes.io/{name}");
        Self {
            user: format!("system:serviceaccount:{namespace}:{name}"),
            groups: vec![
                "system:serviceaccounts".into(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".into(),
            ],
            extra: json!({
                key("pod-name"): [format!("pod-on-{node}")],
                key("pod-uid"): [format!("uid-on-{node}")],
                key("node-name"): [node],
                key("node-uid"): [format!("uid-of-{node}")],
            }),
        }
    }

    /// This very pod, as it is in the cluster. Its account has no rights.
    pub(crate) fn of_pod(pod: &Value) -> Self {
        let metadata = &pod["metadata"];
        let account = format!("{}/default", metadata["namespace"].as_str().unwrap());
        let mut holder = Self::pod(&account, "some-node");
        holder.extra["authentication.kubernetes.io/pod-name"] = json!([metadata["name"]]);
        holder.extra["authentication.kubernetes.io/pod-uid"] = json!([metadata["uid"]]);
        holder
    }

    pub(crate) fn user(name: &str, groups: &[&str]) -> Self {
        Self {
            user: name.to_owned(),
            groups: groups.iter().map(|name| (*name).to_owned()).collect(),
            extra: json!({ "example.org/team": ["a", "b"] }),
        }
    }
}

impl Minted {
    /// For the coordinator, good for an hour.
    pub(crate) fn ours(holder: Holder) -> Self {
        Self {
            holder,
            audiences: vec![AUDIENCE.into()],
            expires_us: now_us() + HOUR.as_micros() as u64,
        }
    }
}

/// Base64 for URLs, without padding (RFC 4648).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let digit = |group: u32, at: usize| char::from(DIGITS[(group >> (18 - 6 * at)) as usize & 63]);
    bytes
        .chunks(3)
        .flat_map(|chunk| {
            let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
            let group = byte(0) << 16 | byte(1) << 8 | byte(2);
            (0..=chunk.len()).map(move |at| digit(group, at))
        })
        .collect()
}

impl State {
    /// Makes a token, and knows it from now on.
    pub(crate) fn mint(&mut self, minted: Minted) -> String {
        let claims = json!({
            "aud": minted.audiences,
            "exp": minted.expires_us / 1_000_000,
            "sub": minted.holder.user,
            "jti": self.tokens.len(),
        });
        let part = |value: &Value| base64(value.to_string().as_bytes());
        let head = json!({ "alg": "RS256" });
        let token = format!("{}.{}.{}", part(&head), part(&claims), base64(b"signature"));
        self.tokens.insert(token.clone(), minted);
        token
    }

    /// Makes a token useless before its end, as the deletion of its pod does.
    pub(crate) fn revoke(&mut self, token: &str) {
        self.tokens.remove(token);
    }

    pub(super) fn review(&self, question: &Value) -> Answer {
        let (spec, mut answer) = (&question["spec"], question.clone());
        let refuse = |why: &str| json!({ "authenticated": false, "user": {}, "error": why });
        let token = spec["token"].as_str().unwrap_or_default();
        let asked: Vec<&str> = (spec["audiences"].as_array().into_iter().flatten())
            .filter_map(Value::as_str)
            .collect();
        answer["status"] = match self.tokens.get(token) {
            None => refuse("[invalid bearer token, Token has been invalidated]"),
            Some(minted) if minted.expires_us <= now_us() => {
                refuse("[invalid bearer token, service account token has expired]")
            }
            Some(minted) => {
                let both = minted.audiences.iter().map(String::as_str);
                let both: Vec<&str> = both.filter(|name| asked.contains(name)).collect();
                if both.is_empty() && !self.no_audiences {
                    refuse("[invalid bearer token, token audiences are invalid]")
                } else {
                    self.reviewed(&minted.holder, &both)
                }
            }
        };
        Answer::Whole(201, answer)
    }

    fn reviewed(&self, holder: &Holder, audiences: &[&str]) -> Value {
        let mut extra = holder.extra.clone();
        if let Some(extra) = extra.as_object_mut().filter(|_| self.no_node_claims) {
            extra.retain(|key, _| !key.contains("/node-"));
        }
        let user = json!({ "username": holder.user, "uid": format!("uid-{}", holder.user), "groups": holder.groups, "extra": extra });
        let mut status = json!({ "authenticated": true, "user": user });
        if !self.no_audiences {
            status["audiences"] = json!(audiences);
        }
        status
    }

    pub(super) fn decide(&mut self, question: &Value) -> Answer {
        self.decided = question["spec"].clone();
        let (spec, mut answer) = (&question["spec"], question.clone());
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let about = &spec["resourceAttributes"];
        if text(&spec["user"]).is_empty() && spec["groups"].as_array().is_none_or(Vec::is_empty) {
            return failure(
                422,
                "Invalid",
                "at least one of user or group must be specified",
            );
        }
        let resource = match text(&about["subresource"]).as_str() {
            "" => text(&about["resource"]),
            sub => format!("{}/{sub}", text(&about["resource"])),
        };
        let groups = spec["groups"].as_array().cloned().unwrap_or_default();
        let holds = |who: &str| match who.strip_prefix("group:") {
            Some(group) => groups.contains(&json!(group)),
            None => text(&spec["user"]) == who,
        };
        let is = |given: &str, asked: &str| given == "*" || given == asked;
        let allowed = text(&about["group"]) == "muster.dev"
            && self.grants.iter().any(|grant| {
                let here =
                    grant.namespace.is_empty() || grant.namespace == text(&about["namespace"]);
                holds(&grant.who)
                    && is(grant.verb, &text(&about["verb"]))
                    && is(grant.resource, &resource)
                    && here
            });
        answer["status"] = json!({ "allowed": allowed });
        Answer::Whole(201, answer)
    }
}
