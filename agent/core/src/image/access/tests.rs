use super::*;

fn secret(uid: &str, hash: &str) -> PullSecret {
    PullSecret { uid: uid.into(), namespace: "shop".into(), name: uid.into(), credential_hash: hash.into() }
}

fn allowlist(patterns: &[&str]) -> Allowlist {
    let mut list = Allowlist::default();
    patterns.iter().for_each(|pattern| list.add(pattern).unwrap());
    list
}

#[test]
fn policies_ask_for_credentials_of_their_images() {
    let with = |secret: PullSecret| Access::With(vec![secret]);
    let listed = Verification::Unlisted(allowlist(&["a.io/web", "b.io/*"]));
    let u1 = || with(secret("u1", "h"));
    let (never, pulled, always) = (Verification::Never, Verification::Pulled, Verification::Always);
    for (policy, image, origin, expected) in [
        (&never, "a.io/web:1", Origin::Preloaded, Access::All),
        (&never, "a.io/web:1", Origin::Begun, Access::All),
        (&never, "a.io/web:1", Origin::Pulled(u1()), Access::All),
        (&never, "a.io/web:1", Origin::Pulled(Access::Nobody), Access::All),
        (&never, "a.io/web:1", Origin::Unreadable, Access::Nobody),
        (&pulled, "a.io/web:1", Origin::Preloaded, Access::All),
        (&pulled, "a.io/web:1", Origin::Begun, Access::Nobody),
        (&pulled, "a.io/web:1", Origin::Pulled(u1()), u1()),
        (&pulled, "a.io/web:1", Origin::Pulled(Access::All), Access::All),
        (&pulled, "a.io/web:1", Origin::Pulled(Access::Nobody), Access::Nobody),
        (&pulled, "a.io/web:1", Origin::Unreadable, Access::Nobody),
        (&listed, "a.io/web:1", Origin::Preloaded, Access::All),
        (&listed, "a.io/web:1", Origin::Pulled(u1()), Access::All),
        (&listed, "b.io/any/thing", Origin::Begun, Access::All),
        (&listed, "c.io/web:1", Origin::Preloaded, Access::Nobody),
        (&listed, "c.io/web:1", Origin::Begun, Access::Nobody),
        (&listed, "c.io/web:1", Origin::Pulled(u1()), u1()),
        (&listed, "a.io/web:1", Origin::Unreadable, Access::Nobody),
        (&always, "a.io/web:1", Origin::Preloaded, Access::Nobody),
        (&always, "a.io/web:1", Origin::Begun, Access::Nobody),
        (&always, "a.io/web:1", Origin::Pulled(u1()), u1()),
        (&always, "a.io/web:1", Origin::Pulled(Access::All), Access::All),
        (&always, "a.io/web:1", Origin::Unreadable, Access::Nobody),
    ] {
        let case = format!("{policy:?} {image} {origin:?}");
        assert_eq!(access(policy, image, origin), expected, "{case}");
    }
}

#[test]
fn a_list_has_images_as_pods_write_them() {
    let digest = format!("sha256:{}", "a".repeat(64));
    let both = format!("a.io/web:1@{digest}");
    let by_digest = format!("busybox@{digest}");
    for (patterns, image, expected) in [
        (&["a.io/web"][..], "a.io/web", true),
        (&["a.io/web"], "a.io/web:1", true),
        (&["a.io/web"], both.as_str(), true),
        (&["a.io/web"], "a.io/web2", false),
        (&["a.io/web"], "a.io/web/more", false),
        (&["a.io:5000/web"], "a.io:5000/web", true),
        (&["a.io:5000/web"], "a.io/web", false),
        (&["a.io/*"], "a.io/web/more:1", true),
        (&["a.io/team/*"], "a.io/web", false),
        (&["a.io/*"], "a.io.example/web", false),
        (&["b.io/x", "a.io/web"], "a.io/web:1", true),
        (&["busybox"], "busybox", true),
        (&["busybox"], "busybox:1.36", true),
        (&["busybox"], by_digest.as_str(), true),
        (&["busybox"], "docker.io/library/busybox", false),
        (&["docker.io/library/busybox"], "busybox", false),
        (&["docker.io/*"], "busybox", false),
        (&["a.io/*"], "a.io/No Name", true),
        (&[], "a.io/web", false),
    ] {
        assert_eq!(allowlist(patterns).has(image), expected, "{patterns:?} {image}");
    }
}

#[test]
fn patterns_are_names_or_end_in_a_star() {
    let digest = format!("a.io/web@sha256:{}", "a".repeat(64));
    for (pattern, expected) in [
        (" a.io/web", InvalidPattern::Blanks),
        ("a.io/web\t", InvalidPattern::Blanks),
        ("", InvalidPattern::Empty),
        ("*", InvalidPattern::Star),
        ("a.io/web*", InvalidPattern::Star),
        ("a.io/*/web", InvalidPattern::Star),
        ("*.io/web", InvalidPattern::Star),
        ("a.io/**", InvalidPattern::Star),
        ("/*", InvalidPattern::NoRegistry),
        ("a.io/", InvalidPattern::NoName("invalid reference format".into())),
        ("a.io/web:1", InvalidPattern::Tagged),
        (&digest, InvalidPattern::Tagged),
    ] {
        assert_eq!(Allowlist::default().add(pattern), Err(expected), "{pattern:?}");
    }
}

#[test]
fn a_secret_or_its_credential_allows_an_image() {
    let known = Access::With(vec![secret("u1", "h1"), secret("u2", "")]);
    for (access, with, expected) in [
        (&Access::All, vec![], Ok(None)),
        (&Access::All, vec![secret("u9", "h9")], Ok(None)),
        (&Access::Nobody, vec![secret("u1", "h1")], Err(())),
        (&known, vec![], Err(())),
        (&known, vec![secret("u1", "h1")], Ok(None)),
        (&known, vec![secret("u1", "h9")], Ok(Some(secret("u1", "h9")))),
        (&known, vec![secret("u9", "h1")], Ok(Some(secret("u9", "h1")))),
        (&known, vec![secret("u9", "h9")], Err(())),
        (&known, vec![secret("u9", "")], Err(())),
        (&known, vec![secret("u9", "h9"), secret("u8", "h1")], Ok(Some(secret("u8", "h1")))),
        (&known, vec![secret("u8", "h1"), secret("u1", "h1")], Ok(Some(secret("u8", "h1")))),
    ] {
        let verdict = match access.verdict(&with) {
            Verdict::Refused => Err(()),
            Verdict::Allowed => Ok(None),
            Verdict::Fits(secret) => Ok(Some(secret.clone())),
        };
        assert_eq!(verdict, expected, "{with:?}");
    }
}

#[test]
fn beside_many_secrets_a_credential_alone_allows_and_nothing_is_kept() {
    let known: Vec<PullSecret> =
        (0..FITTING_MAX).map(|one| secret(&one.to_string(), &format!("h{one}"))).collect();
    for (count, with, expected) in [
        (FITTING_MAX, secret("new", "h5"), Verdict::Allowed),
        (FITTING_MAX, secret("5", "h5"), Verdict::Allowed),
        (FITTING_MAX, secret("5", "other"), Verdict::Refused),
        (FITTING_MAX - 1, secret("5", "other"), Verdict::Fits(&secret("5", "other"))),
        (FITTING_MAX - 1, secret("new", "h5"), Verdict::Fits(&secret("new", "h5"))),
    ] {
        let access = Access::With(known[..count].to_vec());
        assert_eq!(access.verdict([&with]), expected, "{count} {with:?}");
    }
}
