//! Which variables of the base environment the ranks get, and what it says of where they start.

use std::collections::BTreeMap;

use crate::spec::is_of_a_launch;

/// What a site's environment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnvIs {
    /// The agent's own. Ranks get only what concerns the user, the locale and places.
    Agents,
    /// That of the image that workers live in. Ranks get all that is not a launch's own.
    Images,
}

/// Variables of the agent's own environment that ranks get: the user, the locale, and the places of
/// programs and libraries. Every other variable is the agent's own or does harm: torchrun reads
/// every flag from `PET_<FLAG>`, and a stale RANK or MASTER_ADDR changes what a script does.
const PASSED: [&str; 11] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
];
const PASSED_PREFIXES: [&str; 2] = ["LC_", "SSL_CERT_"];

/// Whether a launch takes this variable of its site's environment.
pub(super) fn passes(name: &str, env_is: EnvIs) -> bool {
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    match env_is {
        EnvIs::Agents => PASSED.contains(&name) || begins(&PASSED_PREFIXES),
        // `PWD` is only told, so that ranks start there.
        EnvIs::Images => !is_of_a_launch(name) && name != "PWD",
    }
}

/// The variables of an agent's own environment that ranks get. Who starts torchrun by hand beside an
/// agent gives it the same.
pub fn passed(env: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    env.iter()
        .filter(|(name, _)| passes(name, EnvIs::Agents))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// Where the ranks start: as the job says, else where the image's programs do, else at home. `base`
/// is the environment from which `env`, the ranks' own, was made.
pub(super) fn directory(
    asked: Option<&str>,
    base: &BTreeMap<String, String>,
    env_is: EnvIs,
    env: &BTreeMap<String, String>,
) -> String {
    let of_image = match env_is {
        EnvIs::Images => base.get("PWD").map(String::as_str),
        EnvIs::Agents => None,
    };
    let home = || env.get("HOME").map(String::as_str);
    asked.or(of_image).or_else(home).unwrap_or("/").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_an_image_all_passes_that_is_not_a_launchs_own() {
        let of = |env_is| {
            let names = [
                "HOME",
                "LC_ALL",
                "HF_HOME",
                "PET_NNODES",
                "RANK",
                "MASTER_PORT",
                "TORCH_ELASTIC_WORKER_IDENTICAL",
            ];
            names
                .into_iter()
                .filter(move |name| passes(name, env_is))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(EnvIs::Agents), ["HOME", "LC_ALL"]);
        assert_eq!(of(EnvIs::Images), ["HOME", "LC_ALL", "HF_HOME"]);
    }

    #[test]
    fn an_image_says_where_its_programs_start_unless_the_job_does() {
        let map = |name: &str, dir: &str| BTreeMap::from([(name.to_owned(), dir.to_owned())]);
        let (base, env) = (map("PWD", "/workspace"), map("HOME", "/home/u"));
        let of = |asked, env_is| directory(asked, &base, env_is, &env);
        // On a machine it is the directory of a shell.
        assert_eq!(of(None, EnvIs::Agents), "/home/u");
        assert_eq!(of(None, EnvIs::Images), "/workspace");
        assert_eq!(of(Some("/w"), EnvIs::Images), "/w");
        assert_eq!(directory(None, &env, EnvIs::Images, &base), "/");
    }
}
