//! Requests for certificates: made, sent, and waited for. Source: `k8s.io/client-go/util/certificate/csr/csr.go`.

use std::time::Duration;

use k8s_openapi::{
    ByteString,
    api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, Client, ResourceExt, api::PostParams};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

use super::store::{CertificateError, Pair};
use crate::cluster::{Clients, Seen, Watched, client::within};

/// How long the API server may take to take a request.
const SENT_WITHIN: Duration = Duration::from_secs(30);
/// How long somebody may take to approve it (`certificateWaitTimeout`).
const ISSUED_WITHIN: Duration = Duration::from_secs(15 * 60);

/// A certificate that is asked for.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    common_name: String,
    signer: &'static str,
    usages: [&'static str; 2],
}

impl Wanted {
    /// Says who the node is, as a client.
    pub(super) fn of_client(node: &str) -> Self {
        Self {
            common_name: format!("system:node:{node}"),
            signer: "kubernetes.io/kube-apiserver-client-kubelet",
            usages: ["digital signature", "client auth"],
        }
    }
}

/// Asks with a key that nobody has seen, and waits until somebody has signed.
pub(super) async fn obtain(client: Client, wanted: &Wanted) -> Result<Pair, CertificateError> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, wanted.common_name.as_str());
    let request = params.serialize_request(&key)?.pem()?;
    let object = CertificateSigningRequest {
        metadata: ObjectMeta { generate_name: Some("csr-".to_owned()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.into_bytes()),
            signer_name: wanted.signer.to_owned(),
            usages: Some(wanted.usages.map(str::to_owned).to_vec()),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    let api: Api<CertificateSigningRequest> = Api::all(client.clone());
    let sent = within(SENT_WITHIN, api.create(&PostParams::default(), &object)).await?;
    let name = sent.name_any();
    tracing::info!(request = name, signer = wanted.signer, "a certificate is asked for");
    let fields = format!("metadata.name={name}");
    let mut watched: Watched<CertificateSigningRequest> =
        Watched::new(Clients::new(client), Api::all, fields);
    let issued = async {
        loop {
            let seen = match watched.next().await {
                Seen::Whole(objects) => objects.into_iter().next(),
                Seen::Applied(object) => Some(object),
                Seen::Gone(_) => return Err(refused(&name, "it was deleted".to_owned())),
                Seen::Failed(error) => {
                    tracing::debug!(%error, "watch the request for a certificate");
                    None
                }
            };
            if let Some(certificates) = seen.map(|object| answer(&name, object)).transpose()?.flatten() {
                return Ok(certificates);
            }
        }
    };
    match tokio::time::timeout(ISSUED_WITHIN, issued).await {
        Ok(issued) => Ok(Pair { certificates: issued?, key: key.serialize_pem() }),
        Err(_elapsed) => Err(CertificateError::Unanswered(name)),
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
    let mut text = String::from_utf8(certificates)
        .map_err(|_not_text| refused(name, "what was issued is no certificate".to_owned()))?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(Some(text))
}

fn refused(name: &str, why: String) -> CertificateError {
    CertificateError::Refused { name: name.to_owned(), why }
}
