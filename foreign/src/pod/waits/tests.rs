use super::*;

fn of(words: &[&str]) -> Does {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    does(&words, &[])
}

fn shell(text: &str) -> Does {
    of(&["sh", "-c", text])
}

#[test]
fn what_only_waits_is_proven() {
    for text in [
        "until nslookup master-0; do sleep 1; done",
        "until nslookup master-0; do echo waiting for master; sleep 2; done;",
        "until nc -z minio 9000; do sleep 1; done",
        "while ! nc -z -w 2 $MASTER_ADDR ${PORT:-23456} > /dev/null 2>&1; do sleep 1; done; echo up",
        "while true; do if getent hosts db >/dev/null; then break; fi; echo no; sleep 3; done",
        "for i in $(seq 1 60); do nslookup a && exit 0; sleep 1; done; exit 1",
        "i=0; until wget -q --spider http://a:80/health || [ $i -ge 30 ]; do i=$((i+1)); sleep 1; done",
        "until curl -sfo /dev/null http://a/health; do sleep 1; done",
        "until curl -s -o /dev/null -w '%{http_code}' http://a | grep -q 200; do sleep 1; done",
        "set -e\n# wait\nuntil ping -c 1 a &> /dev/null\ndo\n  sleep 1\ndone\n",
        "timeout 60 sh -c 'until nc -z a 1; do sleep 1; done'",
        "sleep 10",
        "until nslookup db.$(cat /var/run/secrets/kubernetes.io/serviceaccount/namespace).svc; do sleep 2; done",
        "until [ \"$(curl -s -o /dev/null -w '%{http_code}' http://a)\" = 200 ]; do sleep 1; done",
        "for i in `seq 5`; do nc -z $(hostname -i) 80 && break; done",
        "until wget -qO- http://a/live > /dev/null; do date; sleep 1; done",
        "until wget -q -O /dev/null http://a/live; do sleep 1; done",
        "until [ \"$(date +%s)\" -gt 5 ]; do sleep 1; done",
    ] {
        assert_eq!(shell(text), Does::Waits, "{text}");
    }
    assert_eq!(of(&["nslookup", "a"]), Does::Waits);
    assert_eq!(of(&["/bin/sleep", "5"]), Does::Waits);
    let file = Does::WaitsFor("/data/ready".into());
    assert_eq!(shell("until [ -f /data/ready ]; do sleep 1; done"), file);
    assert_eq!(shell("while test ! -e /data/ready; do sleep 1; done"), file);
}

#[test]
fn whatever_may_work_is_no_proof() {
    for (text, part) in [
        (
            "until nc -z minio 9000; do sleep 1; done; mc mirror a /data && tar -xf b",
            "mc mirror a /data",
        ),
        (
            "until nslookup a; do sleep 1; done && chown -R 1000 /data",
            "chown -R 1000 /data",
        ),
        (
            "until nslookup a; do sleep 1; rm -rf /data/*; done",
            "rm -rf /data/*",
        ),
        ("until mc ready minio; do sleep 1; done", "mc ready minio"),
        (
            "until nslookup a; do sleep 1; done > /data/log",
            "> /data/log",
        ),
        ("echo ready > /data/ready", "> /data/ready"),
        ("echo ready >> /data/ready", "> /data/ready"),
        ("until nc a 9 < /data/x; do sleep 1; done", "<"),
        ("until nc a 9000; do sleep 1; done", "nc a 9000"),
        ("nc -zl 9000", "nc -zl 9000"),
        ("until nslookup `rm x`; do sleep 1; done", "rm x"),
        ("until nslookup `cat > x`; do sleep 1; done", "> x"),
        ("sleep \"$(echo $(rm x))\"", "rm x"),
        ("sleep $(echo ')' ; rm x)", "'"),
        ("hostname evil", "hostname evil"),
        ("until nslookup $(aws s3 ls); do sleep 1; done", "aws s3 ls"),
        ("echo \"$(touch /x)\"", "touch /x"),
        (
            "until nslookup a | tee /data/log; do sleep 1; done",
            "tee /data/log",
        ),
        ("until nslookup a; do sleep 1; done | sh", "|"),
        ("curl -o /data/x http://a", "curl -o /data/x http://a"),
        ("curl -X POST http://a", "curl -X POST http://a"),
        ("curl -d x http://a", "curl -d x http://a"),
        ("wget http://a/x", "wget http://a/x"),
        (
            "wget --spider -O /data/x http://a",
            "wget --spider -O /data/x http://a",
        ),
        ("sleep 1 & python serve.py", "&"),
        ("(sleep 1)", "("),
        ("f() { sleep 1; }", "("),
        (
            "until kubectl get pod a; do sleep 1; done",
            "kubectl get pod a",
        ),
        ("$CMD a", "$CMD a"),
        ("PATH=/x sleep 1", "PATH=/x sleep 1"),
        ("date -s 10:00", "date -s 10:00"),
        ("wget -O /data/x http://a", "wget -O /data/x http://a"),
        ("LD_PRELOAD=/x.so sleep 1", "LD_PRELOAD=/x.so sleep 1"),
        ("until nslookup a; do sleep 1", "no done"),
        ("eval sleep 1", "eval sleep 1"),
        ("bash /wait.sh", "bash /wait.sh"),
        ("timeout 5 python x.py", "python x.py"),
    ] {
        assert_eq!(shell(text), Does::Works(part.into()), "{text}");
    }
    assert_eq!(
        of(&["python", "wait.py"]),
        Does::Works("python wait.py".into())
    );
    assert_eq!(does(&[], &[]), Does::Image);
    assert_eq!(does(&[], &["until".into()]), Does::Image);
    let barrier = |more: &[&str]| {
        let args = [&["--barrier_roles=trainer", "--incluster"], more].concat();
        does(
            &[],
            &args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>(),
        )
    };
    assert_eq!(barrier(&["--name=x", "--namespace=y"]), Does::Waits);
    assert_eq!(barrier(&["--then=copy"]), Does::Image);
}

#[test]
fn a_timeout_in_a_timeout_has_an_end() {
    let words = |times: usize| [&["timeout", "1"].repeat(times)[..], &["sleep", "1"]].concat();
    assert_eq!(of(&words(4)), Does::Waits);
    assert_eq!(
        of(&words(5)),
        Does::Works("sleep 1".into()),
        "so deep it is no proof"
    );
    assert_eq!(
        of(&words(50_000)),
        Does::Works("a command of 100002 words".into())
    );
    // In a text as well.
    assert!(matches!(
        shell(&words(50_000).join(" ")),
        Does::Works(part) if part == "a command of 100002 words"
    ));
}
