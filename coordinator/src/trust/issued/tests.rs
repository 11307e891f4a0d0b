use super::*;

const NOW: u64 = 1_000;

/// The hash of a key, by its number.
fn key(number: u8) -> Pin {
    Pin::from_bytes(&[number; 32]).unwrap()
}

fn old() -> Pin {
    key(100)
}

fn next() -> Pin {
    key(200)
}

const fn certificate(number: u8) -> (u8, u64) {
    (number, 2_000)
}

fn of((number, not_after_us): (u8, u64), authority: Pin, instead: Option<u8>) -> Certificate {
    Certificate {
        key: key(number),
        authority,
        issued_us: number.into(),
        not_after_us,
        instead: instead.map(key),
    }
}

fn record(all: impl IntoIterator<Item = Certificate>) -> Record {
    let mut record = Record::default();
    for one in all {
        record.add(one, NOW);
    }
    record
}

fn unrecorded() -> Record {
    Record {
        unrecorded: true,
        ..Record::default()
    }
}

fn needs_old(record: &Record) -> Option<u64> {
    let change = Change {
        next: next(),
        unrecorded_until_us: 3_000,
    };
    record.needs_old(change, NOW)
}

#[test]
fn a_certificate_of_the_old_authority_is_needed_until_it_expires() {
    assert_eq!(needs_old(&Record::default()), None);
    assert_eq!(needs_old(&record([of(certificate(1), next(), None)])), None);
    let with_old = record([of(certificate(1), old(), None)]);
    assert_eq!(needs_old(&with_old), Some(2_000));
    assert_eq!(needs_old(&record([of((1, NOW), old(), None)])), None);
    assert_eq!(needs_old(&unrecorded()), Some(3_000));
    let gone = Change {
        next: next(),
        unrecorded_until_us: NOW,
    };
    assert_eq!(unrecorded().needs_old(gone, NOW), None);
}

#[test]
fn what_was_issued_counts_only_when_it_was_shown() {
    for kind in [Kind::Host, Kind::User] {
        let mut record = record([
            of(certificate(1), old(), None),
            of(certificate(2), next(), Some(1)),
        ]);
        assert_eq!(needs_old(&record), Some(2_000), "{kind:?}: issued");
        assert!(!record.shown(kind, key(7)), "one that is not known");
        assert!(record.shown(kind, key(2)));
        assert_eq!(needs_old(&record), None, "{kind:?}: shown");
        assert!(!record.shown(kind, key(2)), "nothing new");
    }
}

#[test]
fn a_user_is_on_several_machines_and_a_host_on_one() {
    let all = [
        // On one machine, renewed twice; the answer to a renewal between was lost.
        of(certificate(1), old(), None),
        of(certificate(2), old(), Some(1)),
        of(certificate(3), old(), Some(2)),
        of(certificate(4), next(), Some(2)),
        // On another machine.
        of(certificate(5), old(), None),
    ];
    let mut user = record(all.clone());
    assert!(user.shown(Kind::User, key(4)));
    let left: Vec<Pin> = user.certificates.iter().map(|one| one.key).collect();
    assert_eq!(left, [key(4), key(5)]);
    assert_eq!(needs_old(&user), Some(2_000), "the other machine");

    let mut host = record(all);
    assert!(host.shown(Kind::Host, key(4)));
    let left: Vec<Pin> = host.certificates.iter().map(|one| one.key).collect();
    assert_eq!(left, [key(4), key(5)], "a newer one was issued since");
}

#[test]
fn a_certificate_from_before_there_were_records_is_replaced_too() {
    for (kind, instead, left) in [
        (Kind::Host, Some(1), None),
        (Kind::Host, None, None),
        (Kind::User, Some(1), None),
        // Got for a token, maybe on another machine.
        (Kind::User, None, Some(3_000)),
    ] {
        let mut record = unrecorded();
        record.add(of(certificate(2), next(), instead), NOW);
        assert_eq!(needs_old(&record), Some(3_000));
        record.shown(kind, key(2));
        assert_eq!(needs_old(&record), left, "{kind:?} {instead:?}");
    }
}

#[test]
fn records_are_kept_and_those_of_earlier_versions_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let issued = Issued::new(folder.path());
    assert!(issued.all().unwrap().is_empty());
    let ann: Principal = "user/ann-2".parse().unwrap();
    let n1: Principal = "host/n1".parse().unwrap();
    issued
        .add(&ann, of(certificate(1), old(), None), NOW)
        .unwrap();
    fs::write(folder.path().join("issued/host-n1"), "1761000000000000\n").unwrap();
    assert!(issued.is_taken(&n1) && issued.is_taken(&ann));
    let all = issued.all().unwrap();
    assert_eq!(all[&n1], unrecorded());
    assert_eq!(all[&ann], record([of(certificate(1), old(), None)]));
    issued
        .add(&ann, of(certificate(2), next(), Some(1)), NOW)
        .unwrap();
    issued.shown(&ann, key(2)).unwrap();
    assert_eq!(needs_old(&issued.all().unwrap()[&ann]), None);
    fs::write(folder.path().join("issued/host-n1"), "{").unwrap();
    let error = issued.all().unwrap_err().to_string();
    assert!(error.contains("issued/host-n1"), "{error}");
}

#[test]
fn a_record_has_a_bound() {
    let all = (0..=u8::MAX).chain(0..=u8::MAX);
    let record = record(all.map(|number| of(certificate(number), old(), None)));
    assert_eq!(record.certificates.len(), CERTIFICATES_MAX);
    let mut record = record;
    record.add(of((1, 9_000), old(), None), 2_000);
    assert_eq!(record.certificates.len(), 1, "what has expired is dropped");
}
