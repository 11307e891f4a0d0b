use super::*;

#[test]
fn a_refusal_is_told_in_the_words_of_the_api_server() {
    let told = |pod: &str, why: Unanswered| sentence(pod, &NotMade::Unanswered(why));
    let forbidden = |text: &str| told("one-bcdfg", Unanswered::Forbidden(text.into()));
    assert_eq!(
        forbidden("pods \"one-bcdfg\" is forbidden: exceeded quota: few, used: pods=5"),
        "exceeded quota: few, used: pods=5"
    );
    let hook = "admission webhook \"theirs\" denied the request: no";
    assert_eq!(forbidden(hook), hook);
    let right = forbidden(
        "pods is forbidden: User \"me\" cannot create resource \"pods\" in API group \"\"",
    );
    assert!(
        right.starts_with("User \"me\" cannot create") && right.contains("worker-pods"),
        "{right}"
    );
    // Who tries again with another name hears the same, and is told once.
    for (code, text) in [
        (422, "Pod \"POD\" is invalid: spec.volumes[4]: Forbidden"),
        (403, "pods \"POD\" is forbidden: exceeded quota: few"),
        (
            400,
            "admission webhook \"theirs\" denied the request: POD is not signed",
        ),
    ] {
        let of = |pod: &str| {
            let text = text.replace("POD", pod);
            match code {
                403 => told(pod, Unanswered::Forbidden(text)),
                _ => told(pod, Unanswered::Refused { code, text }),
            }
        };
        assert_eq!(of("one-bcdfg"), of("one-hjklm"), "{text}");
        assert!(!of("one-bcdfg").is_empty());
    }
}
