//! Which images ask pods for credentials though they are on the node.

use berth_core::image::access::{Allowlist, Verification};

use super::KubeletConfiguration;
use crate::document::{Fault, Node};

/// The allowed images.
const ALLOWLIST: &str = "preloadedImagesVerificationAllowlist";

/// What `imagePullCredentialsVerificationPolicy` and the list beside it ask for; a name of no policy, which is told apart, is as the default.
/// Source: `pkg/kubelet/apis/config/validation/validation.go`, `NewImagePullCredentialVerificationPolicy` of
/// `pkg/kubelet/images/pullmanager/image_pull_policies.go`.
///
/// # Errors
/// A list without its policy, and patterns that name no images.
pub(super) fn read(kubelet: &KubeletConfiguration, tree: &Node) -> Result<Verification, Vec<Fault>> {
    let patterns = kubelet.preloaded_images_verification_allowlist.as_deref().unwrap_or_default();
    let policy = match kubelet.image_pull_credentials_verification_policy.as_deref() {
        Some("NeverVerifyAllowlistedImages") => return allowlist(patterns, tree).map(Verification::Unlisted),
        Some("NeverVerify") => Verification::Never,
        Some("AlwaysVerify") => Verification::Always,
        Some(_) | None => Verification::Pulled,
    };
    if patterns.is_empty() {
        return Ok(policy);
    }
    let why = "needs `imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages`";
    Err(vec![tree.fault(ALLOWLIST, why)])
}

fn allowlist(patterns: &[String], tree: &Node) -> Result<Allowlist, Vec<Fault>> {
    let (mut list, mut faults) = (Allowlist::default(), Vec::new());
    for (index, pattern) in patterns.iter().enumerate() {
        if let Err(error) = list.add(pattern) {
            faults.push(tree.fault(&format!("{ALLOWLIST}[{index}]"), format!("`{pattern}`: {error}")));
        }
    }
    if faults.is_empty() { Ok(list) } else { Err(faults) }
}
