//! The kubelet that the node has, from the flags.

use std::path::PathBuf;

use super::{WrongFlag, wrong};
use crate::probe::Kubelet;

pub(super) fn kubelet(
    socket: Option<PathBuf>,
    own_pod: Option<String>,
) -> Result<Option<Kubelet>, WrongFlag> {
    let Some(socket) = socket else {
        return match own_pod {
            None => Ok(None),
            Some(_) => Err(wrong("own-pod", "is only of use with --pod-resources")),
        };
    };
    if !socket.is_absolute() {
        let message = format!("{} is not an absolute path", socket.display());
        return Err(wrong("pod-resources", message));
    }
    let own_pod = own_pod.map(|text| pair(&text)).transpose()?;
    Ok(Some(Kubelet { socket, own_pod }))
}

fn pair(text: &str) -> Result<(String, String), WrongFlag> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
            Ok((namespace.to_owned(), name.to_owned()))
        }
        _ => Err(wrong("own-pod", format!("{text:?} is not NAMESPACE/NAME"))),
    }
}
