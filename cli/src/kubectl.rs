//! What the user's kubectl does for this command line: it gives the coordinator's authorities and a
//! token, and leads to the coordinator. So whatever kubectl can log in with (certificates, exec
//! plugins, an identity provider) works here, and the kubeconfig is read by nobody else.
//!
//! A token is for the coordinator's own audience. The user's credentials for the API server never
//! leave kubectl.

mod forward;

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use crate::contexts::KubernetesEntry;

pub(crate) use forward::{BOUND, Bound, Forward, bound};

/// The ConfigMap with the coordinator's authorities, and the Service in front of it.
const BUNDLE: &str = "muster-ca-bundle";
const SERVICE: &str = "muster-coordinator";

/// A user's kubectl, with the answer to "which cluster".
#[derive(Clone, Debug)]
pub(crate) struct Kubectl {
    entry: KubernetesEntry,
    /// The coordinator is called at an address of its own.
    is_exposed: bool,
    /// `None`: no limit.
    timeout: Option<Duration>,
}

impl Kubectl {
    pub(crate) fn of(entry: &KubernetesEntry, is_exposed: bool, timeout: Option<Duration>) -> Self {
        Self {
            entry: entry.clone(),
            is_exposed,
            timeout,
        }
    }

    /// The certificate authorities of the coordinator, PEM.
    pub(crate) fn authorities(&self) -> Result<String, String> {
        let namespace = &self.entry.system_namespace;
        let path = r"jsonpath={.data.ca\.crt}";
        let text = self.ask(&["get", "configmap", BUNDLE, "-n", namespace, "-o", path])?;
        if text.trim().is_empty() {
            return Err(format!(
                "the ConfigMap {BUNDLE} in namespace {namespace} has no authorities yet; has the coordinator started?"
            ));
        }
        Ok(text)
    }

    /// A new token of the service account, for the coordinator's audience.
    pub(crate) fn token(&self) -> Result<String, String> {
        let (namespace, name) = account(&self.entry.service_account);
        let audience = format!("--audience={SERVICE}.{}", self.entry.system_namespace);
        self.ask(&["create", "token", name, "-n", namespace, &audience])
    }

    /// The name that must stand in the coordinator's certificate, if not the one in its address.
    pub(crate) fn server_name(&self) -> Option<String> {
        let given = self.entry.server_name.clone();
        let of_service = || format!("{SERVICE}.{}.svc", self.entry.system_namespace);
        given.or_else(|| (!self.is_exposed).then(of_service))
    }

    /// What kubectl prints. It may ask the user something, as a login in a browser does, and tells its
    /// errors itself.
    fn ask(&self, arguments: &[&str]) -> Result<String, String> {
        let seconds = self.timeout.map_or(0, |timeout| timeout.as_secs().max(1));
        let mut command = self.command(arguments);
        command.arg(format!("--request-timeout={seconds}s"));
        printed(&mut command)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = program(self.entry.kubeconfig.as_deref());
        command
            .arg(format!("--context={}", self.entry.kube_context))
            .args(arguments);
        command
    }
}

/// What a kubeconfig says when nobody names a context.
pub(crate) fn current_context(kubeconfig: Option<&str>) -> Result<String, String> {
    let text = printed(program(kubeconfig).args(["config", "current-context"]))?;
    Ok(text.trim().to_owned())
}

/// The namespace that a context of a kubeconfig chooses. Empty: it chooses none.
pub(crate) fn namespace(kubeconfig: Option<&str>, context: &str) -> Result<String, String> {
    let path = "jsonpath={.contexts[0].context.namespace}";
    let context = format!("--context={context}");
    let view = ["config", "view", "--minify", &context, "-o", path];
    let text = printed(program(kubeconfig).args(view))?;
    Ok(text.trim().to_owned())
}

/// The parts of `NAMESPACE/NAME`.
pub(crate) fn account(text: &str) -> (&str, &str) {
    text.split_once('/').unwrap_or(("default", text))
}

fn program(kubeconfig: Option<&str>) -> Command {
    let mut command = Command::new("kubectl");
    if let Some(files) = kubeconfig {
        command.env("KUBECONFIG", files);
    }
    command
}

fn printed(command: &mut Command) -> Result<String, String> {
    let output = command
        .stdin(Stdio::inherit())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("kubectl, which this context needs: {e}"))?;
    if !output.status.success() {
        return Err(format!("{}: {}", shown(command), output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The command as a person would type it.
fn shown(command: &Command) -> String {
    let words: Vec<_> = [command.get_program()]
        .into_iter()
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect();
    words.join(" ")
}
