//! What a site replaces is taken whole, and what cannot be taken changes nothing.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::*;

/// Certificate and key of an authority, and of a server of this name.
fn made(name: &str) -> (String, Pair) {
    let (key, server) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let leaf = CertificateParams::new(vec![name.to_owned()]).unwrap();
    let own = Pair {
        chain: leaf.signed_by(&server, &issuer).unwrap().pem(),
        key: server.serialize_pem(),
    };
    (authority, own)
}

fn files(folder: &Path) -> SiteFiles {
    SiteFiles {
        certificate: folder.join("tls.crt"),
        key: folder.join("tls.key"),
        authorities: Some(folder.join("ca.crt")),
        client_authorities: None,
        names: UriNames::default(),
    }
}

fn put(files: &SiteFiles, (authority, own): &(String, Pair)) {
    let write = |path: &Path, text: &str| {
        // Another inode, as with every writer that replaces a file.
        let new = path.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(&new, path).unwrap();
    };
    write(&files.certificate, &own.chain);
    write(&files.key, &own.key);
    write(files.authorities.as_ref().unwrap(), authority);
}

#[test]
fn replaced_files_are_taken_when_they_fit_together() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(folder.path());
    let (first, second) = (made("a.example"), made("b.example"));
    put(&files, &first);
    let (site, tls) = Site::open(files.clone()).unwrap();
    let state = || (site.name().unwrap(), site.authorities());
    assert_eq!(state(), ("a.example".into(), first.0.clone()));

    // Half of a change: the certificate, but not its key.
    fs::write(&files.certificate, &second.1.chain).unwrap();
    site.look(&tls);
    assert_eq!(state(), ("a.example".into(), first.0.clone()));
    put(&files, &second);
    site.look(&tls);
    assert_eq!(state(), ("b.example".into(), second.0.clone()));

    fs::remove_file(&files.key).unwrap();
    site.look(&tls);
    assert_eq!(state(), ("b.example".into(), second.0.clone()));
}

#[test]
fn what_a_start_cannot_use_names_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(folder.path());
    let (first, other) = (made("a.example"), made("a.example"));
    let refused = |files: &SiteFiles| Site::open(files.clone()).unwrap_err().to_string();
    assert!(refused(&files).contains("ca.crt: No such file"));
    put(&files, &(first.0.clone(), other.1.clone()));
    fs::write(&files.key, &first.1.key).unwrap();
    let why = refused(&files);
    assert!(
        why.contains("tls.crt: the server's certificate: ") && why.contains("KeyMismatch"),
        "{why}"
    );
    put(&files, &first);
    // Others are told this file, so a secret in it would be no secret.
    let ca = files.authorities.as_ref().unwrap();
    fs::write(ca, format!("{}{}", first.0, first.1.key)).unwrap();
    let why = refused(&files);
    assert!(why.contains("ca.crt: holds a private key"), "{why}");
    assert!(!why.contains("BEGIN"), "{why}");
    fs::write(ca, "no certificate").unwrap();
    let why = refused(&files);
    assert!(
        why.contains("ca.crt: ") && why.contains("holds no certificate"),
        "{why}"
    );
}
