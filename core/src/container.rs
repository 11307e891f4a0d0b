//! Images of containers, as jobs name them, and the programs that run them on hosts without Kubernetes. A node reports
//! which one it has, the coordinator gives a job only nodes that can run its image, and the agent asks that program
//! ([`node::container`](crate::node::container)).

use std::{fmt, time::Duration};

/// The longest name of an image: a registry, a repository of 255 bytes, a tag of 128 and a digest of 71 bytes
/// (opencontainers/distribution-spec) have room in it.
pub const IMAGE_BYTES_MAX: usize = 512;
/// The longest name and version of a runtime in a node's report.
pub const RUNTIME_BYTES_MAX: usize = 64;

/// How long a runtime may take until a container is there, most of all to pull the image. 20 GB take 27 minutes at
/// 100 Mbit/s. A generation whose job has an image may take so much longer to get ready.
pub const START_MAX: Duration = Duration::from_secs(1_800);

/// A program that runs images without a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    Podman,
    Apptainer,
    Enroot,
}

impl Runtime {
    /// In the order in which an agent looks for them.
    pub const ALL: [(&'static str, Runtime); 3] = [
        ("podman", Runtime::Podman),
        ("apptainer", Runtime::Apptainer),
        ("enroot", Runtime::Enroot),
    ];

    pub fn name(self) -> &'static str {
        let named = Self::ALL.iter().find(|(_, one)| *one == self);
        named.map_or("", |(name, _)| name)
    }

    /// The runtime of a node's report, such as `podman 4.3.1`. `None`: it has none, or one that is not known here.
    pub fn of_report(report: &str) -> Option<Self> {
        let name = report.split(' ').next().unwrap_or_default();
        let known = Self::ALL.iter().find(|(known, _)| *known == name);
        known.map(|(_, runtime)| *runtime)
    }
}

/// Where an image comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source<'a> {
    /// A file, or for apptainer a directory, on the node.
    File(&'a str),
    /// What a registry has, written as `docker.io/pytorch/pytorch:2.8.0`.
    Registry(String),
    /// Any other URI, such as `oras://`.
    Uri(&'a str),
}

impl<'a> Source<'a> {
    pub fn of(image: &'a str) -> Self {
        let registry = match image.split_once("://") {
            Some(("docker", rest)) => rest,
            Some(_) => return Source::Uri(image),
            None if image.starts_with('/') => return Source::File(image),
            None => image,
        };
        // enroot separates the registry from the repository by '#'.
        Source::Registry(registry.replacen('#', "/", 1))
    }
}

/// What is wrong with the name of an image: a clause after its path. `None`: nothing.
pub fn image_error(image: &str) -> Option<String> {
    let strange = |c: char| c.is_whitespace() || c.is_control();
    Some(match image {
        "" => "is empty, must be the name of an image".to_owned(),
        long if long.len() > IMAGE_BYTES_MAX => {
            let bytes = long.len();
            format!("is {bytes} bytes long, at most {IMAGE_BYTES_MAX} are allowed")
        }
        _ if image.contains(strange) => format!("is {image:?}, must have no white space"),
        // A runtime would read it as an option.
        _ if image.starts_with('-') => format!("is {image:?}, must not begin with '-'"),
        _ if image.starts_with(['.', '~']) => {
            format!("is {image:?}: name a file by its absolute path on the nodes")
        }
        _ => return None,
    })
}

/// Why a node cannot run an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoImage {
    NoRuntime,
    /// Podman runs what registries have.
    NoFiles(Runtime),
    NoUris(Runtime),
}

impl fmt::Display for NoImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoImage::NoRuntime => f.write_str(
                "runs no images (its agent has neither podman nor apptainer nor enroot)",
            ),
            NoImage::NoFiles(runtime) => {
                write!(f, "has {}, which runs no image files", runtime.name())
            }
            NoImage::NoUris(runtime) => {
                let name = runtime.name();
                write!(f, "has {name}, which takes images from registries only")
            }
        }
    }
}

/// Why a node with this runtime in its report cannot run an image. `None`: it can, as far as anybody can know before.
pub fn no_image(report: &str, image: &str) -> Option<NoImage> {
    let Some(runtime) = Runtime::of_report(report) else {
        return Some(NoImage::NoRuntime);
    };
    match (Source::of(image), runtime) {
        (Source::File(_), Runtime::Podman) => Some(NoImage::NoFiles(runtime)),
        (Source::Uri(_), Runtime::Podman | Runtime::Enroot) => Some(NoImage::NoUris(runtime)),
        (Source::File(_) | Source::Registry(_) | Source::Uri(_), _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spellings_of_all_runtimes_mean_the_same_image() {
        let registry = |image| Source::of(image) == Source::Registry("nvcr.io/nvidia/p:1".into());
        assert!(registry("nvcr.io/nvidia/p:1"));
        assert!(registry("nvcr.io#nvidia/p:1"));
        assert!(registry("docker://nvcr.io#nvidia/p:1"));
        assert_eq!(Source::of("/s/t.sif"), Source::File("/s/t.sif"));
        assert_eq!(Source::of("oras://r/x"), Source::Uri("oras://r/x"));
    }

    #[test]
    fn a_node_that_cannot_run_an_image_says_why() {
        let why = |report, image| no_image(report, image).map(|why| why.to_string());
        assert_eq!(why("podman 4.3.1", "docker.io/a/b:1"), None);
        assert_eq!(why("apptainer 1.4.0", "/s/t.sif"), None);
        assert_eq!(why("enroot 3.5.0", "/s/t.sqsh"), None);
        let none = "runs no images (its agent has neither podman nor apptainer nor enroot)";
        assert_eq!(why("", "a"), Some(none.into()));
        assert_eq!(
            why("other 1", "a"),
            Some(none.into()),
            "of a newer agent, perhaps"
        );
        assert_eq!(
            why("podman 4.3.1", "/s/t.sif"),
            Some("has podman, which runs no image files".into())
        );
        assert_eq!(
            why("enroot 3.5.0", "oras://r/x"),
            Some("has enroot, which takes images from registries only".into())
        );
    }

    #[test]
    fn names_that_no_runtime_could_take_are_refused() {
        assert_eq!(image_error("docker.io/pytorch/pytorch:2.8.0"), None);
        assert_eq!(image_error("/shared/train.sif"), None);
        for wrong in ["", "a b", "a\nb", "--privileged", "./x.sqsh", "~/x.sif"] {
            assert!(image_error(wrong).is_some(), "{wrong:?}");
        }
        assert!(image_error(&"x".repeat(IMAGE_BYTES_MAX + 1)).is_some());
    }
}
