use super::*;
use crate::test_tree;
use proptest::prelude::*;

/// Shortened from cloud-init's documentation (explanation/instancedata.rst).
const AWS: &str = r#"{
 "base64_encoded_keys": [], "cloud_name": "aws",
 "ds": {
  "dynamic": {"instance_identity": {"document": {
    "availabilityZone": "us-east-1b", "imageId": "ami-02e8aa396f8be3b6d", "instanceId": "i-0929128ff2f73a2f1",
    "instanceType": "t2.micro", "kernelId": null}}},
  "meta_data": {"ami_id": "ami-02e8aa396f8be3b6d", "instance_id": "i-0929128ff2f73a2f1", "instance_type": "t2.micro",
    "placement": {"availability_zone": "us-east-1b"}}},
 "sensitive_keys": [], "userdata": "redacted for non-root user",
 "v1": {"availability_zone": "us-east-1b", "cloud_name": "aws", "instance_id": "i-0929128ff2f73a2f1", "region": "us-east-1"}}"#;

const AZURE: &str = r#"{
 "ds": {"meta_data": {"imds": {"compute": {
   "location": "eastus", "zone": "2", "vmSize": "Standard_ND96asr_v4", "platformFaultDomain": "0",
   "storageProfile": {"imageReference": {"id": "", "publisher": "microsoft-dsvm", "offer": "ubuntu-hpc", "sku": "2204",
     "version": "22.04.2024010801"}}}}}},
 "v1": {"availability_zone": "0", "cloud_name": "azure", "instance_id": "0d8e3f0a-5a3c-4b0e-9d5e-111111111111", "region": "eastus"}}"#;

const GCE: &str = r#"{
 "ds": {"meta_data": {"availability-zone": "us-central1-a", "instance-id": "4235678901234567890", "instance-data": "{}"}},
 "v1": {"availability_zone": "us-central1-a", "cloud_name": "gce", "instance_id": "4235678901234567890"}}"#;

fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
    let dir = test_tree::tree(files);
    let root = Root::at(dir.path());
    (dir, root)
}

fn cloud_of(files: &[(&str, &str)]) -> Cloud {
    let (_dir, root) = tree(files);
    find(&root, Some(&root))
}

fn texts(cloud: &Cloud) -> [Option<&str>; 5] {
    [&cloud.name, &cloud.image_id, &cloud.zone, &cloud.instance_type, &cloud.instance_id].map(|t| t.as_deref())
}

#[test]
fn cloud_init_on_aws() {
    let cloud = cloud_of(&[("/run/cloud-init/instance-data.json", AWS)]);
    let expected = ["aws", "ami-02e8aa396f8be3b6d", "us-east-1b", "t2.micro", "i-0929128ff2f73a2f1"];
    assert_eq!(texts(&cloud), expected.map(Some));
    let old =
        AWS.replace("ami_id", "ami-id").replace("instance_type", "instance-type").replace("\"dynamic\"", "\"no\"");
    assert_eq!(cloud_of(&[("/run/cloud-init/instance-data.json", &old)]), cloud, "keys of older versions");
}

#[test]
fn cloud_init_on_azure_distinguishes_zone_and_fault_domain() {
    let cloud = cloud_of(&[("/run/cloud-init/instance-data.json", AZURE)]);
    assert_eq!(cloud.zone.as_deref(), Some("eastus-2"));
    assert_eq!(cloud.image_id.as_deref(), Some("microsoft-dsvm:ubuntu-hpc:2204:22.04.2024010801"));
    assert_eq!(cloud.instance_type.as_deref(), Some("Standard_ND96asr_v4"));
    let without_zone = AZURE.replace("\"zone\": \"2\"", "\"zone\": \"\"");
    assert_eq!(cloud_of(&[("/run/cloud-init/instance-data.json", &without_zone)]).zone, None);
}

#[test]
fn cloud_init_on_gce_does_not_invent_an_image() {
    let cloud = cloud_of(&[("/run/cloud-init/instance-data.json", GCE)]);
    assert_eq!(texts(&cloud), [Some("gce"), None, Some("us-central1-a"), None, Some("4235678901234567890")]);
}

#[test]
fn firmware_only() {
    let nitro = cloud_of(&[
        ("/sys/class/dmi/id/sys_vendor", "Amazon EC2\n"),
        ("/sys/class/dmi/id/product_name", "p4d.24xlarge\n"),
        ("/sys/class/dmi/id/board_asset_tag", "i-0af01c0123456789a\n"),
    ]);
    assert_eq!(texts(&nitro), [Some("aws"), None, None, Some("p4d.24xlarge"), Some("i-0af01c0123456789a")]);
    let gce = cloud_of(&[
        ("/sys/class/dmi/id/product_name", "Google Compute Engine\n"),
        ("/etc/google_instance_id", "4235678901234567890\n"),
    ]);
    assert_eq!(texts(&gce), [Some("gce"), None, None, None, Some("4235678901234567890")]);
    let azure = cloud_of(&[("/sys/class/dmi/id/chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77\n")]);
    assert_eq!(texts(&azure), [Some("azure"), None, None, None, None]);
    let hyper_v_at_home = cloud_of(&[("/sys/class/dmi/id/sys_vendor", "Microsoft Corporation\n")]);
    assert_eq!(hyper_v_at_home, Cloud::default());
    let chromebook =
        cloud_of(&[("/sys/class/dmi/id/sys_vendor", "Google\n"), ("/sys/class/dmi/id/product_name", "Eve\n")]);
    assert_eq!(chromebook, Cloud::default());
}

#[test]
fn eks_without_cloud_init_data() {
    let config = r#"{"kind": "KubeletConfiguration", "providerID": "aws:///us-west-2f/i-123456789000"}"#;
    let cloud = cloud_of(&[
        ("/etc/kubernetes/kubelet/config.json", config),
        ("/sys/class/dmi/id/sys_vendor", "Amazon EC2\n"),
        ("/sys/class/dmi/id/product_name", "m5.24xlarge\n"),
    ]);
    assert_eq!(texts(&cloud), [Some("aws"), None, Some("us-west-2f"), Some("m5.24xlarge"), Some("i-123456789000")]);
}

#[test]
fn an_instance_id_left_in_the_image_is_ignored() {
    let stale = ("/var/lib/cloud/data/instance-id", "i-0ld\n");
    assert_eq!(cloud_of(&[stale]).instance_id, None);
    let ran = cloud_of(&[stale, ("/run/cloud-init/cloud-id", "aws\n")]);
    assert_eq!((ran.name.as_deref(), ran.instance_id.as_deref()), (Some("aws"), Some("i-0ld")));
    let made_up =
        [("/var/lib/cloud/data/instance-id", "iid-datasource-none\n"), ("/run/cloud-init/cloud-id", "none\n")];
    assert_eq!(cloud_of(&made_up), Cloud::default());
}

#[test]
fn without_the_nodes_files_only_the_firmware_is_used() {
    let (_dir, root) = tree(&[
        ("/run/cloud-init/instance-data.json", AZURE),
        ("/sys/class/dmi/id/chassis_asset_tag", "OracleCloud.com\n"),
    ]);
    assert_eq!(texts(&find(&root, None)), [Some("oracle"), None, None, None, None]);
}

proptest! {
    #[test]
    fn any_text_is_accepted(text in ".{0,200}") {
        let _ = from_instance_data(&text);
        let _ = from_provider_id(&text);
    }

    #[test]
    fn any_values_are_accepted(values in proptest::collection::vec("(null|1|\"a\"|\\[\\]|\\{\\}|\"redacted for non-root user\"|true)", 6)) {
        let text = format!(
            r#"{{"v1": {{"cloud_name": {0}, "instance_id": {1}, "availability_zone": {2}}}, "ds": {{"meta_data":
            {{"ami_id": {3}, "imds": {{"compute": {{"zone": {4}}}}}, "placement": {5}}}}}}}"#,
            values[0], values[1], values[2], values[3], values[4], values[5]
        );
        let cloud = from_instance_data(&text);
        for text in texts(&cloud).into_iter().flatten() {
            prop_assert!(!text.is_empty() && !text.contains("redacted"));
        }
        prop_assert!(serde_json::from_str::<Value>(&text).is_ok());
    }

    #[test]
    fn deep_nesting_is_refused(depth in 1usize..5000) {
        let _ = from_instance_data(&"{\"ds\":".repeat(depth));
    }
}
