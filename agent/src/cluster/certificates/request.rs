//! Requests for certificates: made, sent, and waited for. Source: `k8s.io/client-go/util/certificate/csr/csr.go`.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use berth_core::cluster::certificate::{ServerNames, Subject};
use k8s_openapi::{
    ByteString,
    api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, Client, ResourceExt, api::PostParams};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _};
use sha2::{Digest as _, Sha512_256};

use super::{
    pem,
    store::{CertificateError, Pair},
};
use crate::cluster::{Clients, Seen, Watched, client::within};

/// How long the API server may take to take a request.
const SENT_WITHIN: Duration = Duration::from_secs(30);
/// How long somebody may take to approve it (`certificateWaitTimeout`).
const ISSUED_WITHIN: Duration = Duration::from_secs(15 * 60);

/// A certificate that is asked for.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    subject: Subject,
    signer: &'static str,
    usages: [&'static str; 2],
}

impl Wanted {
    /// Says who the node is, as a client.
    pub(super) fn of_client(node: &str) -> Self {
        Self {
            subject: Subject::of_node(node, ServerNames::default()),
            signer: "kubernetes.io/kube-apiserver-client-kubelet",
            usages: ["digital signature", "client auth"],
        }
    }

    /// Says who the node is, as a server.
    pub(super) fn of_server(subject: Subject) -> Self {
        Self {
            subject,
            signer: "kubernetes.io/kubelet-serving",
            usages: ["digital signature", "server auth"],
        }
    }

    /// The name of a request that is the same whenever the same is asked with the same key (`digestedName` of
    /// `pkg/kubelet/certificate/bootstrap/bootstrap.go`).
    pub(super) fn name(&self, key: &KeyPair) -> String {
        let mut digest = Sha512_256::new();
        let mut add = |part: &[u8]| {
            digest.update(URL_SAFE_NO_PAD.encode(part));
            digest.update("|");
        };
        add(&key.subject_public_key_info());
        add(self.subject.common_name.as_bytes());
        self.subject.organizations.iter().for_each(|name| add(name.as_bytes()));
        self.usages.iter().for_each(|usage| add(usage.as_bytes()));
        format!("node-csr-{}", URL_SAFE_NO_PAD.encode(digest.finalize()))
    }

    fn request(&self, key: &KeyPair) -> Result<String, rcgen::Error> {
        let names = &self.subject.names;
        let all: Vec<_> =
            names.dns.iter().cloned().chain(names.ips.iter().map(ToString::to_string)).collect();
        let mut params = CertificateParams::new(all)?;
        params.distinguished_name = DistinguishedName::new();
        for organization in &self.subject.organizations {
            params.distinguished_name.push(DnType::OrganizationName, organization.as_str());
        }
        params.distinguished_name.push(DnType::CommonName, self.subject.common_name.as_str());
        params.serialize_request(key)?.pem()
    }
}

/// Asks with a key, and waits until somebody has signed. A request that has its `name` already, of an earlier agent with the same
/// key, is waited for; what was issued for it so long ago that it has ended is of no use (`ensureCompatible`).
pub(super) async fn obtain(
    client: Client,
    wanted: &Wanted,
    key: &KeyPair,
    name: Option<String>,
) -> Result<Pair, CertificateError> {
    let request = wanted.request(key)?;
    let generate_name = name.is_none().then(|| "csr-".to_owned());
    let object = CertificateSigningRequest {
        metadata: ObjectMeta { generate_name, name: name.clone(), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.into_bytes()),
            signer_name: wanted.signer.to_owned(),
            usages: Some(wanted.usages.map(str::to_owned).to_vec()),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    let api: Api<CertificateSigningRequest> = Api::all(client.clone());
    let sent = within(SENT_WITHIN, api.create(&PostParams::default(), &object)).await;
    let (name, is_known) = match (sent, name) {
        (Err(error), Some(name)) if error.is_conflict() => (name, true),
        (sent, _) => (sent?.name_any(), false),
    };
    tracing::info!(request = name, signer = wanted.signer, "a certificate is asked for");
    let pair = Pair { certificates: issued(client, &name).await?, key: key.serialize_pem() };
    if is_known && !pair.holds() { Err(CertificateError::Ended(name)) } else { Ok(pair) }
}

/// Waits for what is issued.
async fn issued(client: Client, name: &str) -> Result<String, CertificateError> {
    let fields = format!("metadata.name={name}");
    let mut watched: Watched<CertificateSigningRequest> =
        Watched::new(Clients::new(client), Api::all, fields);
    let issued = async {
        loop {
            let seen = match watched.next().await {
                Seen::Whole { objects, .. } => objects.into_iter().find(|object| object.name_any() == name),
                Seen::Applied(object) => Some(object),
                Seen::Unread(_) => None,
                Seen::Gone(_) => return Err(refused(name, "it was deleted".to_owned())),
                Seen::Failed(error) => {
                    tracing::debug!(%error, "watch the request for a certificate");
                    None
                }
            };
            if let Some(certificates) = seen.map(|object| answer(name, object)).transpose()?.flatten() {
                return Ok(certificates);
            }
        }
    };
    match tokio::time::timeout(ISSUED_WITHIN, issued).await {
        Ok(issued) => issued,
        Err(_elapsed) => Err(CertificateError::Unanswered(name.to_owned())),
    }
}

/// What came of a request; nothing as long as nobody has decided.
fn answer(name: &str, object: CertificateSigningRequest) -> Result<Option<String>, CertificateError> {
    let Some(status) = object.status else { return Ok(None) };
    let conditions = status.conditions.unwrap_or_default();
    if let Some(no) = conditions.iter().find(|one| ["Denied", "Failed"].contains(&one.type_.as_str())) {
        let why = format!("{}: {}", no.type_, no.message.clone().unwrap_or_default());
        return Err(refused(name, why));
    }
    let Some(ByteString(certificates)) = status.certificate else { return Ok(None) };
    let none = || CertificateError::NotUnderstood(name.to_owned());
    let mut text = String::from_utf8(certificates).map_err(|_not_text| none())?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    // Nobody would know when it is to be replaced.
    pem::told(&text).ok_or_else(none)?;
    Ok(Some(text))
}

fn refused(name: &str, why: String) -> CertificateError {
    CertificateError::Refused { name: name.to_owned(), why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::certificates::signer::Signer;

    const SOON: Duration = Duration::from_secs(30);
    const KEY: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgmTt5Ao2p5RvfYXmM
7mQonqeoFF1b6pg+6n0Mqh/zNL2hRANCAATgGF8cfDBDzq+Uxxf7092JT5sgiQOY
c5eTUd6gK8jOtbmarCKA42A5jQk/yCuQAnSbrG98MAhClLa83fL2meiX
-----END PRIVATE KEY-----
";

    #[test]
    fn a_request_has_the_kubelets_name() {
        let wanted = Wanted::of_client("a");
        let (key, other) = (KeyPair::from_pem(KEY).unwrap(), KeyPair::generate().unwrap());
        // SHA-512/256 of the parts, computed apart.
        assert_eq!(wanted.name(&key), "node-csr-8IUavJyVwbnzQlijlRNNY2NhhFr903WXVC1fmOvr25U");
        assert_ne!(wanted.name(&other), wanted.name(&key));
        assert_ne!(Wanted::of_client("b").name(&key), wanted.name(&key));
    }

    #[tokio::test]
    async fn what_was_issued_for_a_request_before_is_taken_as_long_as_it_holds() {
        let (wanted, key) = (Wanted::of_client("a"), KeyPair::from_pem(KEY).unwrap());
        for (until, is_taken) in [(2999, true), (2001, false)] {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.not_after = rcgen::date_time_ymd(until, 1, 1);
            let issued = params.self_signed(&key).unwrap().pem();
            let name = wanted.name(&key);
            let signer = Signer::with_answered(&name, &issued);
            let got = obtain(signer.clients().get(), &wanted, &key, Some(name)).await;
            let is_ended = matches!(got, Err(CertificateError::Ended(_)));
            assert_eq!((got.is_ok(), is_ended), (is_taken, !is_taken), "until {until}");
        }
    }

    #[tokio::test]
    async fn a_request_that_is_refused_or_deleted_is_waited_for_no_longer() {
        let (wanted, key) = (Wanted::of_client("a"), KeyPair::from_pem(KEY).unwrap());
        for (signer, why) in [
            (Signer::with_condition("Denied"), "Denied: no"),
            (Signer::with_condition("Failed"), "Failed: no"),
            (Signer::deleting(), "it was deleted"),
        ] {
            let asked = obtain(signer.clients().get(), &wanted, &key, None);
            let refused = tokio::time::timeout(SOON, asked).await.unwrap().err().unwrap();
            assert!(matches!(refused, CertificateError::Refused { .. }), "{refused}");
            assert_eq!(refused.to_string(), format!("get the certificate of request csr-0: {why}"));
        }
    }
}
