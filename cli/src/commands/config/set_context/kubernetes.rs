//! `muster config set-context --kubernetes`: which cluster, and as whom.

use std::env;

use clap::Args;
use muster_core::id::label_error;

use crate::{
    context::Context,
    contexts::{Entry, KubernetesEntry},
    fail::Failure,
    kubectl::{self, Kubectl},
    shown,
};

/// The service account of a namespace whose token is shown if nobody names another.
const ACCOUNT: &str = "muster";

#[derive(Debug, Args)]
pub(super) struct Flags {
    /// Reach the coordinator in a Kubernetes cluster by your kubectl
    #[arg(long)]
    kubernetes: bool,
    /// Context of your kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME", requires = "kubernetes")]
    kube_context: Option<String>,
    /// Whose tokens are shown [default: the service account muster of the namespace]
    #[arg(long, value_name = "[NAMESPACE/]NAME", requires = "kubernetes")]
    service_account: Option<String>,
    /// The namespace in which the coordinator runs
    #[arg(
        long,
        value_name = "NAMESPACE",
        requires = "kubernetes",
        default_value = "muster-system"
    )]
    system_namespace: String,
}

/// Asks kubectl for all that later commands need, to see that it can be had.
pub(super) fn entry(
    cx: &Context,
    mut entry: Entry,
    flags: Flags,
    server_name: Option<String>,
) -> Result<Entry, Failure> {
    let kubeconfig = kubeconfig()?;
    let files = kubeconfig.as_deref();
    let kube_context = match flags.kube_context {
        Some(name) => name,
        None => kubectl::current_context(files).map_err(Failure::request)?,
    };
    if entry.namespace.is_none() {
        let chosen = kubectl::namespace(files, &kube_context).map_err(Failure::request)?;
        entry.namespace = Some(chosen).filter(|name| !name.is_empty());
    }
    let namespace = entry.namespace.as_deref().unwrap_or("default");
    let service_account = match flags.service_account {
        None => format!("{namespace}/{ACCOUNT}"),
        Some(text) if text.contains('/') => text,
        Some(name) => format!("{namespace}/{name}"),
    };
    check("--system-namespace", &flags.system_namespace)?;
    let (of, name) = kubectl::account(&service_account);
    check("--service-account", of)?;
    check("--service-account", name)?;
    let kubernetes = KubernetesEntry {
        kube_context,
        kubeconfig,
        system_namespace: flags.system_namespace,
        service_account,
        server_name,
    };
    let is_exposed = !entry.server.is_empty();
    let asked = Kubectl::of(&kubernetes, is_exposed, cx.request_timeout());
    asked.authorities().map_err(Failure::Unreachable)?;
    asked
        .token()
        .map_err(|why| without_token(&kubernetes, &why))?;
    shown::by_kubernetes(&asked)?;
    entry.kubernetes = Some(kubernetes);
    Ok(entry)
}

/// What $KUBECONFIG names, as it is read from any working directory.
fn kubeconfig() -> Result<Option<String>, Failure> {
    let Some(value) = env::var_os("KUBECONFIG").filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let whole = |path| std::path::absolute(&path);
    let paths: Result<Vec<_>, _> = env::split_paths(&value).map(whole).collect();
    let failed = |why: String| Failure::usage(format!("KUBECONFIG: {why}"));
    let paths = paths.map_err(|e| failed(e.to_string()))?;
    let joined = env::join_paths(paths).map_err(|e| failed(e.to_string()))?;
    let text = joined.into_string();
    text.map(Some)
        .map_err(|_| failed("it is not valid UTF-8".into()))
}

/// A name becomes an argument of kubectl.
fn check(flag: &str, name: &str) -> Result<(), Failure> {
    match label_error(name) {
        Some(why) => Err(Failure::usage(format!("{flag}: {why}"))),
        None => Ok(()),
    }
}

fn without_token(entry: &KubernetesEntry, why: &str) -> Failure {
    let (namespace, name) = kubectl::account(&entry.service_account);
    Failure::Unreachable(format!(
        "{why}\nIf there is no such service account, whoever may give rights in {namespace} makes it:\n  \
         kubectl create serviceaccount {name} -n {namespace}\n  \
         kubectl create rolebinding {name} -n {namespace} --clusterrole muster-submitter --serviceaccount {namespace}:{name}\n\
         You need the right to create serviceaccounts/token there, which the ClusterRole edit has."
    ))
}
