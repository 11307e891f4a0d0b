use std::{fs, time::Duration};

use super::*;
use crate::trust::files::{crash, now_us};

const DAY_US: u64 = Duration::from_secs(24 * 60 * 60).as_micros() as u64;

fn made(folder: &Path) -> Authorities {
    let names = ["a.example".to_owned(), "10.0.0.1".to_owned()];
    let (authorities, new) = Authorities::init(folder, None, &names, now_us()).unwrap();
    assert!(new);
    authorities
}

/// The pins of the authorities that the server sends along.
fn sent(authorities: &Authorities, folder: &Path) -> BTreeSet<Pin> {
    let chain = authorities.server_pair(folder, now_us()).unwrap().chain;
    let end = "-----END CERTIFICATE-----";
    let (_leaf, rest) = chain.split_once(end).unwrap();
    Pin::all_of_pem(rest.trim_start())
}

#[test]
fn the_servers_certificate_lasts_until_two_thirds_are_over_or_names_change() {
    let folder = tempfile::tempdir().unwrap();
    let (authorities, now) = (made(folder.path()), now_us());
    let at = |authorities: &Authorities, day: u64| {
        let pair = authorities.server_pair(folder.path(), now + day * DAY_US);
        pair.unwrap().chain
    };
    let first = at(&authorities, 0);
    assert_eq!(at(&authorities, 59), first);
    let second = at(&authorities, 61);
    assert_ne!(second, first);
    let more = ["b.example".to_owned()];
    let (authorities, new) = Authorities::init(folder.path(), Some("muster"), &more, now).unwrap();
    assert!(!new);
    assert_eq!(authorities.names(), ["a.example", "10.0.0.1", "b.example"]);
    assert_ne!(at(&authorities, 61), second);
    assert_eq!(authorities.endpoint(7), "https://a.example:7");
    let error = Authorities::init(folder.path(), Some("other"), &[], now).unwrap_err();
    assert!(matches!(error, TrustError::OtherDomain(_)));
}

#[test]
fn a_change_has_a_beginning_and_an_end() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let error = Authorities::rotate(folder, 1).unwrap_err();
    assert!(matches!(error, TrustError::NotThere(_)), "{error}");
    let before = made(folder);
    let error = Authorities::finish(folder, |_| Ok(())).unwrap_err();
    assert!(matches!(error, TrustError::NotChanging), "{error}");

    let changing = Authorities::rotate(folder, now_us()).unwrap();
    assert_eq!(changing.serving().pin(), before.pin());
    assert_ne!(changing.pin(), before.pin());
    let both = BTreeSet::from([before.pin(), changing.pin()]);
    assert_eq!(changing.pins(), both);
    assert_eq!(Pin::all_of_pem(&changing.bundle()), both);
    assert_eq!(sent(&changing, folder), both);
    let error = Authorities::rotate(folder, now_us()).unwrap_err();
    assert!(matches!(error, TrustError::Changing), "{error}");
    // More names may be added meanwhile.
    Authorities::init(folder, None, &["b.example".into()], 1).unwrap();

    let error = Authorities::finish(folder, |_| Err(TrustError::NotChanging)).unwrap_err();
    assert!(matches!(error, TrustError::NotChanging), "{error}");
    let still = Authorities::open(folder).unwrap().unwrap();
    assert_eq!(
        still.pins(),
        both,
        "a finish that is refused changes nothing"
    );
    let done = Authorities::finish(folder, |_| Ok(())).unwrap();
    assert_eq!(done.pins(), BTreeSet::from([changing.pin()]));
    assert_eq!(sent(&done, folder), done.pins());
    assert_eq!(done.names().last().unwrap(), "b.example");
    assert!(!folder.join("authority.key").exists(), "the old key");
    // And again.
    let third = Authorities::rotate(folder, now_us()).unwrap();
    assert!(!third.pins().contains(&before.pin()) && third.pins().len() == 2);
}

#[test]
fn a_crash_between_any_two_writes_leaves_a_cluster_that_starts() {
    let mut begun = 0;
    for steps in 0..8 {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let before = made(folder);
        before.server_pair(folder, now_us()).unwrap();
        let rotated = crash::after(steps, || Authorities::rotate(folder, now_us()));
        let there = Authorities::open(folder).unwrap().unwrap();
        assert_eq!(there.serving().pin(), before.pin());
        assert_eq!(sent(&there, folder), there.pins());
        assert_eq!(there.next().is_some(), rotated.is_ok(), "after {steps}");
        if rotated.is_err() {
            Authorities::rotate(folder, now_us()).unwrap();
        }
        begun += u32::from(rotated.is_ok());

        let next = Authorities::open(folder).unwrap().unwrap().pin();
        let finished = crash::after(steps, || Authorities::finish(folder, |_| Ok(())));
        let there = Authorities::open(folder).unwrap().unwrap();
        assert_eq!(sent(&there, folder), there.pins(), "after {steps}");
        let over = there.next().is_none();
        assert_eq!(over, steps > 0, "the first write decides");
        let serves = if over { next } else { before.pin() };
        assert_eq!(there.serving().pin(), serves);
        if !over {
            assert!(finished.is_err());
            Authorities::finish(folder, |_| Ok(())).unwrap();
        }
        Authorities::rotate(folder, now_us()).unwrap();
    }
    assert_eq!(begun, 5, "three files are written for a new authority");
}

#[test]
fn damaged_files_of_the_next_authority_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    made(folder);
    Authorities::rotate(folder, now_us()).unwrap();
    let key = fs::read_to_string(folder.join("authority-2.key")).unwrap();
    let other = fs::read_to_string(folder.join("authority.key")).unwrap();
    for (bad, why) in [
        ("", "authority-2.key: holds no private key"),
        (other.as_str(), "authority-2.key: is not the key of "),
    ] {
        fs::write(folder.join("authority-2.key"), bad).unwrap();
        let error = Authorities::open(folder).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    fs::write(folder.join("authority-2.key"), key).unwrap();
    Authorities::open(folder).unwrap().unwrap();
    fs::write(folder.join("authority-2.pem"), "no").unwrap();
    let error = Authorities::open(folder).unwrap_err().to_string();
    assert!(
        error.contains("authority-2.pem: holds no certificate"),
        "{error}"
    );
    fs::remove_file(folder.join("authority-2.pem")).unwrap();
    let error = Authorities::open(folder).unwrap_err().to_string();
    assert!(error.contains("authority-2.pem: is missing"), "{error}");
}
