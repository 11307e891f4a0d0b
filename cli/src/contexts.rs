//! The user's coordinators: a file of contexts, as kubectl has, and one file of credentials for
//! each.

use std::{
    collections::BTreeMap,
    env, fs, io,
    path::{Path, PathBuf},
};

use muster_rpc::credentials::{Credentials, write_secret};
use serde::{Deserialize, Serialize};

use crate::{fail::Failure, shown::Shown};

/// Names the file, in place of the one in the user's configuration directory.
const FILE: &str = "MUSTER_CONFIG";

/// The context that means the cluster of `muster local up`. It is always there.
pub(crate) const LOCAL: &str = "local";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Entry {
    /// `https://HOST:PORT`. Empty: a port of this machine that kubectl forwards.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) server: String,
    /// The namespace of jobs whose namespace is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    /// File of credentials; relative to the folder of this file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) credentials: Option<PathBuf>,
    /// What is shown in place of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<TokenEntry>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) certificate: Option<CertificateEntry>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kubernetes: Option<KubernetesEntry>,
}

/// A coordinator in a Kubernetes cluster that this user's kubectl reaches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct KubernetesEntry {
    /// The context of the kubeconfig.
    pub(crate) kube_context: String,
    /// The files of the kubeconfig, as $KUBECONFIG names them. Without it kubectl looks where it
    /// always does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kubeconfig: Option<String>,
    /// The coordinator's namespace.
    pub(crate) system_namespace: String,
    /// The service account whose tokens are shown, as `NAMESPACE/NAME`.
    pub(crate) service_account: String,
    /// The name in the coordinator's certificate, if not that of its Service or the one in its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) server_name: Option<String>,
}

/// A certificate that the site issues and renews, for a coordinator that takes those.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CertificateEntry {
    /// File of the certificate authorities that vouch for the coordinator.
    pub(crate) ca_file: PathBuf,
    /// The name in the coordinator's certificate, if not the one in its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) server_name: Option<String>,
    pub(crate) file: PathBuf,
    pub(crate) key: PathBuf,
}

/// Where a token comes from, for a coordinator that takes those of a Kubernetes cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct TokenEntry {
    /// File of the certificate authorities that vouch for the coordinator.
    pub(crate) ca_file: PathBuf,
    /// The name in the coordinator's certificate, if not the one in its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) server_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<PathBuf>,
    /// A program and its arguments that print a token. No shell is involved.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) command: Vec<String>,
}

impl Entry {
    /// Where the coordinator is, for a person.
    pub(crate) fn address(&self) -> &str {
        match self.server.as_str() {
            "" => "(kubectl port-forward)",
            server => server,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Content {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    current_context: Option<String>,
    #[serde(default)]
    contexts: BTreeMap<String, Entry>,
}

#[derive(Debug)]
pub(crate) struct Contexts {
    path: PathBuf,
    content: Content,
}

impl Contexts {
    /// Reads the user's contexts. Without a file there are none.
    pub(crate) fn load() -> Result<Self, Failure> {
        let Some(path) = path() else {
            return Ok(Self {
                path: PathBuf::new(),
                content: Content::default(),
            });
        };
        let content = match fs::read_to_string(&path) {
            Ok(text) => serde_saphyr::from_str(&text)
                .map_err(|e| Failure::usage(format!("{}: {e}", path.display())))?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Content::default(),
            Err(e) => return Err(Failure::request(format!("{}: {e}", path.display()))),
        };
        Ok(Self { path, content })
    }

    pub(crate) fn current(&self) -> Option<&str> {
        self.content.current_context.as_deref()
    }

    pub(crate) fn all(&self) -> &BTreeMap<String, Entry> {
        &self.content.contexts
    }

    pub(crate) fn get(&self, name: &str) -> Result<&Entry, Failure> {
        self.content.contexts.get(name).ok_or_else(|| {
            let mut known: Vec<&str> = self.content.contexts.keys().map(String::as_str).collect();
            known.push(LOCAL);
            Failure::usage(format!(
                "there is no context {name:?} in {}; there are {} (muster login adds one)",
                self.path.display(),
                known.join(", ")
            ))
        })
    }

    /// The context of this server, if there is one.
    pub(crate) fn of_server(&self, server: &str) -> Option<&Entry> {
        let mut entries = self.content.contexts.values();
        entries.find(|entry| entry.server == server)
    }

    fn credentials_path(&self, entry: &Entry) -> Option<PathBuf> {
        let file = entry.credentials.as_ref()?;
        Some(self.folder().join(file))
    }

    /// What this user shows to the coordinator of a context.
    pub(crate) fn shown(&self, entry: &Entry) -> Option<Shown> {
        let token = entry.token.clone().map(Shown::Token);
        let certificate = || entry.certificate.clone().map(Shown::Certificate);
        let kubernetes = || entry.kubernetes.clone().map(Shown::Kubernetes);
        let given = token.or_else(certificate).or_else(kubernetes);
        given.or_else(|| self.credentials_path(entry).map(Shown::Credentials))
    }

    /// Chooses the context that commands use from now on.
    pub(crate) fn select(&mut self, name: &str) -> Result<(), Failure> {
        if name != LOCAL {
            self.get(name)?;
        }
        self.content.current_context = Some(name.to_owned());
        self.save()
    }

    /// Adds a context, or replaces the one of this name, and chooses it.
    pub(crate) fn add(
        &mut self,
        name: &str,
        namespace: Option<String>,
        credentials: &Credentials,
    ) -> Result<(), Failure> {
        self.has_place()?;
        let file = PathBuf::from(format!("credentials/{name}.json"));
        credentials
            .write(&self.folder().join(&file))
            .map_err(Failure::request)?;
        let entry = Entry {
            server: credentials.server.clone(),
            namespace,
            credentials: Some(file),
            ..Entry::default()
        };
        self.set(name, entry)
    }

    /// Adds a context without credentials of its own, or replaces the one of this name, and chooses
    /// it.
    pub(crate) fn set(&mut self, name: &str, entry: Entry) -> Result<(), Failure> {
        self.content.contexts.insert(name.to_owned(), entry);
        self.content.current_context = Some(name.to_owned());
        self.save()
    }

    /// Forgets a context and its credentials.
    pub(crate) fn remove(&mut self, name: &str) -> Result<(), Failure> {
        let path = self.credentials_path(self.get(name)?);
        self.content.contexts.remove(name);
        if self.current() == Some(name) {
            self.content.current_context = None;
        }
        self.save()?;
        let Some(path) = path else { return Ok(()) };
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(Failure::request(format!("{}: {e}", path.display())))
            }
            _ => Ok(()),
        }
    }

    /// Fails if there is nowhere to keep contexts. Only a place of the user's own will do, because
    /// commands trust what they find there.
    fn has_place(&self) -> Result<(), Failure> {
        if self.path.as_os_str().is_empty() {
            return Err(Failure::usage(format!(
                "there is no place for contexts: set HOME or {FILE}"
            )));
        }
        Ok(())
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    fn save(&self) -> Result<(), Failure> {
        self.has_place()?;
        let text = serde_saphyr::to_string(&self.content).map_err(Failure::request)?;
        write_secret(&self.path, &text)
            .map_err(|e| Failure::request(format!("{}: {e}", self.path.display())))
    }
}

/// `$MUSTER_CONFIG`, else `$XDG_CONFIG_HOME/muster/config.yaml`. `None`: there is no place that is
/// this user's own.
fn path() -> Option<PathBuf> {
    if let Some(path) = env::var_os(FILE).filter(|path| !path.is_empty()) {
        return Some(PathBuf::from(path));
    }
    let from = |name: &str| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let folder =
        from("XDG_CONFIG_HOME").or_else(|| from("HOME").map(|home| home.join(".config")))?;
    Some(folder.join("muster/config.yaml"))
}

/// A name for a context that was not given one: the server's host.
pub(crate) fn name_for(host: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '.' || c == '-' {
            c
        } else {
            '-'
        }
    };
    host.chars().map(plain).collect()
}

/// Why this cannot be a context's name. It becomes a file's name.
pub(crate) fn name_error(name: &str) -> Option<&'static str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name == LOCAL {
        Some("means the cluster of `muster local up`")
    } else if name.is_empty()
        || name.len() > 64
        || !name.chars().all(plain)
        || name.starts_with('.')
    {
        Some("must be at most 64 letters, digits and . _ -, and not begin with a dot")
    } else {
        None
    }
}
