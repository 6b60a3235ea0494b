use std::{fs, net::Ipv4Addr};

use berth_core::server::Origin;
use rcgen::{DnType, DnValue, ExtendedKeyUsagePurpose};
use tempfile::TempDir;

use super::{
    super::{
        certificates::{CHAIN_MAX, Certificates},
        connection::Asker,
        tests::pki::{Authority, Identity, Wanted},
    },
    *,
};

async fn credential(ca: &ClientCa, chain: &[CertificateDer<'static>]) -> Credential {
    let here = Asker { from: Origin::of(Ipv4Addr::LOCALHOST.into()), is_known: true };
    Certificates::new(chain).credential(ca, here).await
}

fn user(credential: Credential) -> (String, Vec<String>) {
    match credential {
        Credential::Proven(user) => (user.name, user.groups),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_certificate_of_the_authority_says_who_somebody_is() {
    let authority = Authority::new();
    let ca = ClientCa::fixed(&format!("# one of\n{}{}", Authority::new().pem, authority.pem));
    let Identity { chain, .. } = authority.client("me");
    assert_eq!(user(credential(&ca, &chain).await), ("me".to_owned(), vec!["testers".to_owned()]));
    assert_eq!(credential(&ca, &[]).await, Credential::Absent);
    for (more, expected) in [(CHAIN_MAX - 1, true), (CHAIN_MAX, false)] {
        let others = (0..more).map(|_| Authority::new().client("other").chain.remove(0));
        let long: Vec<_> = chain.iter().cloned().chain(others).collect();
        let holds = matches!(credential(&ca, &long).await, Credential::Proven(_));
        assert_eq!(holds, expected, "{more} more");
    }
    let other = ClientCa::fixed(&Authority::new().pem);
    assert_eq!(credential(&other, &chain).await, Credential::Refused);
}

#[tokio::test]
async fn what_does_not_hold_for_a_client_is_refused() {
    let authority = Authority::new();
    let ca = ClientCa::fixed(&authority.pem);
    let names = [(DnType::CommonName, "me")];
    use ExtendedKeyUsagePurpose::{ClientAuth, CodeSigning, ServerAuth};
    for (years, usages, holds) in [
        ((2020, 2999), &[ClientAuth][..], true),
        ((2020, 2999), &[ServerAuth, ClientAuth], true),
        // It says nothing of what it is for.
        ((2020, 2999), &[], true),
        ((2020, 2999), &[ServerAuth], false),
        ((2020, 2999), &[CodeSigning], false),
        ((2000, 2001), &[ClientAuth], false),
        ((2990, 2999), &[ClientAuth], false),
    ] {
        let Identity { chain, .. } = authority.sign(&Wanted { names: &names, years, usages });
        let credential = credential(&ca, &chain).await;
        assert_eq!(matches!(credential, Credential::Proven(_)), holds, "{years:?} {usages:?}");
        assert!(holds || credential == Credential::Refused);
    }
}

/// Its end is that of the client's own certificate.
#[test]
fn a_judgement_knows_when_the_certificate_ends() {
    let (authority, of_nobody) = (Authority::new(), Authority::new());
    let verifier = verifier(&authority.pem).unwrap();
    let wanted = |years| Wanted {
        names: &[(DnType::CommonName, "me")],
        years,
        usages: &[ExtendedKeyUsagePurpose::ClientAuth],
    };
    // 1 January of 2100 and of 2200.
    for (year, seconds) in [(2100, 4_102_444_800), (2200, 7_258_118_400)] {
        let chain = authority.sign(&wanted((2020, year))).chain;
        let end = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        assert_eq!(judge(&*verifier, &chain).ends, Some(end));
    }
    let refused = judge(&*verifier, &of_nobody.sign(&wanted((2020, 2100))).chain);
    assert_eq!((refused.credential, refused.ends), (Credential::Refused, None));
}

#[test]
fn texts_that_are_no_utf_8_name_nobody() {
    let params = |value: DnValue| {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, value);
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().to_vec()
    };
    let names = |der: &[u8]| names(Certificate::from_der(der).ok()?);
    let printable = DnValue::PrintableString("system:admin".replace(':', "-").as_str().try_into().unwrap());
    assert_eq!(names(&params(printable)).unwrap().common_names, ["system-admin"]);
    assert_eq!(names(&params(DnValue::Utf8String("é".to_owned()))).unwrap().common_names, ["é"]);
    let wide = DnValue::BmpString(rcgen::string::BmpString::try_from("admin").unwrap());
    assert_eq!(names(&params(wide)), None);
    for broken in [&b""[..], b"x", &[0x30, 0x80]] {
        assert_eq!(names(broken), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_is_followed_and_what_cannot_be_used_leaves_what_was() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("ca.crt");
    let (first, second) = (Authority::new(), Authority::new());
    let (ca, following) = ClientCa::of(&file);
    let chains = [first.client("me").chain, second.client("me").chain];
    let holds = async || {
        let [first, second] = &chains;
        let holds = async |chain| matches!(credential(&ca, chain).await, Credential::Proven(_));
        [holds(first).await, holds(second).await]
    };
    assert_eq!(holds().await, [false, false]);
    let mut seen = ca.verifier.clone();
    tokio::spawn(following);
    fs::write(&file, &first.pem).unwrap();
    seen.changed().await.unwrap();
    assert_eq!(holds().await, [true, false]);
    for broken in ["", "x", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        fs::write(&file, broken).unwrap();
        tokio::time::sleep(EVERY * 2).await;
        assert_eq!(holds().await, [true, false], "{broken}");
    }
    fs::remove_file(&file).unwrap();
    tokio::time::sleep(EVERY * 2).await;
    assert_eq!(holds().await, [true, false]);
    fs::write(&file, &second.pem).unwrap();
    seen.changed().await.unwrap();
    assert_eq!(holds().await, [false, true]);
}
