//! Join tokens: `ID.SECRET`, 128 random bits each. Only the secret's hash is kept, so what stands in
//! `tokens/` is not enough to join.

use std::{fs, io, path::Path};

use muster_rpc::identity::Kind;
use ring::{
    digest::{SHA256, digest},
    rand::{SecureRandom, SystemRandom},
};
use serde::{Deserialize, Serialize};

use super::files::{TrustError, read_json, write_json};

/// What a token is good for.
#[derive(Clone, Debug)]
pub struct Token {
    pub kind: Kind,
    /// `None`: any name that was never given out.
    pub name: Option<String>,
    pub uses: u32,
    /// Microseconds since the Unix epoch.
    pub expires_us: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// One answer for all, so that nobody learns which tokens there are.
    #[error(
        "the token is not known: it was used up, has expired, or was never made; ask whoever runs the coordinator for a new one \
         (muster-coordinator token create)"
    )]
    Unknown,
    #[error(transparent)]
    Trust(#[from] TrustError),
}

/// A token on disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Stored {
    #[serde(skip)]
    id: String,
    sha256: String,
    #[serde(with = "kind")]
    pub(super) kind: Kind,
    pub(super) name: Option<String>,
    uses: u32,
    expires_us: u64,
}

mod kind {
    use muster_rpc::identity::Kind;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(kind: &Kind, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(match kind {
            Kind::Host => "host",
            Kind::User => "user",
        })
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Kind, D::Error> {
        match String::deserialize(from)?.as_str() {
            "host" => Ok(Kind::Host),
            "user" => Ok(Kind::User),
            other => Err(D::Error::custom(format!(
                "{other:?} is neither host nor user"
            ))),
        }
    }
}

/// A token that is there, without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub id: String,
    pub kind: Kind,
    /// `None`: any name that was never given out.
    pub name: Option<String>,
    /// How often it can still be used.
    pub uses: u32,
    /// Microseconds since the Unix epoch.
    pub expires_us: u64,
}

/// All tokens that are there, the one that expires first at the beginning.
pub(super) fn list(folder: &Path) -> Result<Vec<Listed>, TrustError> {
    let folder = folder.join("tokens");
    let failed = |why| TrustError::File {
        path: folder.clone(),
        why,
    };
    let entries = match fs::read_dir(&folder) {
        // No token was ever made.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut tokens = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        let Some(id) = name.to_str().and_then(|name| name.strip_suffix(".json")) else {
            continue;
        };
        // It may have been used up meanwhile.
        let Some(stored) = read_json::<Stored>(&folder.join(&name))? else {
            continue;
        };
        tokens.push(Listed {
            id: id.to_owned(),
            kind: stored.kind,
            name: stored.name,
            uses: stored.uses,
            expires_us: stored.expires_us,
        });
    }
    tokens.sort_by(|a, b| (a.expires_us, &a.id).cmp(&(b.expires_us, &b.id)));
    Ok(tokens)
}

/// Makes the token with this id useless.
pub(super) fn delete(folder: &Path, id: &str) -> Result<(), TrustError> {
    let path = path(folder, id);
    fs::remove_file(&path).map_err(|why| TrustError::File { path, why })
}

pub(super) fn create(folder: &Path, token: Token) -> Result<String, TrustError> {
    let (id, secret) = (random(folder)?, random(folder)?);
    let stored = Stored {
        id: id.clone(),
        sha256: hash(&secret),
        kind: token.kind,
        name: token.name,
        uses: token.uses,
        expires_us: token.expires_us,
    };
    save(folder, &stored)?;
    Ok(format!("{id}.{secret}"))
}

/// Finds the token that this text is.
pub(super) fn look(folder: &Path, text: &str, now_us: u64) -> Result<Stored, TokenError> {
    let (id, secret) = text.trim().split_once('.').ok_or(TokenError::Unknown)?;
    // The id becomes a file's name.
    if id.len() != 32
        || !id
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    {
        return Err(TokenError::Unknown);
    }
    let path = path(folder, id);
    let stored: Stored = read_json(&path)?.ok_or(TokenError::Unknown)?;
    // Comparing hashes tells nothing of the secret by its time.
    if stored.sha256 != hash(secret) {
        return Err(TokenError::Unknown);
    }
    if stored.expires_us <= now_us || stored.uses == 0 {
        // Ignore an error: an expired token is refused every time.
        let _ = fs::remove_file(path);
        return Err(TokenError::Unknown);
    }
    Ok(Stored {
        id: id.to_owned(),
        ..stored
    })
}

/// Takes one use away, on disk, before anything is given for it.
pub(super) fn use_up(folder: &Path, token: &Stored) -> Result<(), TrustError> {
    if token.uses > 1 {
        let uses = token.uses - 1;
        return save(
            folder,
            &Stored {
                uses,
                ..token.clone()
            },
        );
    }
    delete(folder, &token.id)
}

/// Gives a use back for which nothing was given.
pub(super) fn give_back(folder: &Path, token: &Stored) -> Result<(), TrustError> {
    let there: Option<Stored> = read_json(&path(folder, &token.id))?;
    // A token with more uses that is not there any more was deleted meanwhile.
    if there.is_none() && token.uses > 1 {
        return Ok(());
    }
    let uses = there.map_or(0, |there| there.uses) + 1;
    save(
        folder,
        &Stored {
            uses,
            ..token.clone()
        },
    )
}

fn save(folder: &Path, token: &Stored) -> Result<(), TrustError> {
    write_json(&path(folder, &token.id), token)
}

fn path(folder: &Path, id: &str) -> std::path::PathBuf {
    folder.join("tokens").join(format!("{id}.json"))
}

fn random(folder: &Path) -> Result<String, TrustError> {
    let mut bytes = [0; 16];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| TrustError::Malformed {
            path: folder.to_owned(),
            why: "the system gives no random numbers".into(),
        })?;
    Ok(hex(&bytes))
}

fn hash(secret: &str) -> String {
    hex(digest(&SHA256, secret.as_bytes()).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000;

    fn token(uses: u32) -> Token {
        Token {
            kind: Kind::Host,
            name: None,
            uses,
            expires_us: NOW + 1,
        }
    }

    #[test]
    fn a_token_is_good_for_its_uses_and_its_time() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let text = create(folder, token(2)).unwrap();
        for _ in 0..2 {
            use_up(folder, &look(folder, &text, NOW).unwrap()).unwrap();
        }
        assert!(matches!(look(folder, &text, NOW), Err(TokenError::Unknown)));
        let text = create(folder, token(1)).unwrap();
        assert!(look(folder, &text, NOW + 1).is_err(), "it has expired");
        assert!(look(folder, &text, NOW).is_err(), "and was removed");
    }

    #[test]
    fn a_token_is_listed_without_its_secret_and_is_useless_once_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        assert_eq!(list(folder).unwrap(), []);
        let later = Token {
            kind: Kind::User,
            name: Some("ann".into()),
            uses: 1,
            expires_us: NOW + 2,
        };
        let later = create(folder, later).unwrap();
        let text = create(folder, token(3)).unwrap();
        use_up(folder, &look(folder, &text, NOW).unwrap()).unwrap();
        let listed = list(folder).unwrap();
        let uses: Vec<u32> = listed.iter().map(|token| token.uses).collect();
        assert_eq!(uses, [2, 1], "by their expiry");
        let (id, secret) = text.split_once('.').unwrap();
        assert_eq!(listed[0].id, id);
        assert!(!format!("{listed:?}").contains(secret));
        delete(folder, id).unwrap();
        assert!(matches!(look(folder, &text, NOW), Err(TokenError::Unknown)));
        look(folder, &later, NOW).unwrap();
    }

    #[test]
    fn what_is_no_token_opens_no_file_and_tells_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let text = create(folder, token(1)).unwrap();
        let (id, secret) = text.split_once('.').unwrap();
        let stored = fs::read_to_string(path(folder, id)).unwrap();
        assert!(!stored.contains(secret), "only its hash is kept");
        let wrong = [
            String::new(),
            id.to_owned(),
            format!("{id}."),
            format!("{id}.{}", "0".repeat(32)),
            format!("../../settings.{secret}"),
            format!("{}.{secret}", id.to_uppercase()),
        ];
        for text in wrong {
            let error = look(folder, &text, NOW).expect_err(&text);
            assert!(matches!(error, TokenError::Unknown), "{text}: {error}");
        }
        look(folder, &text, NOW).unwrap();
    }
}
