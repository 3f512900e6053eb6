package sbom_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/trtship/trtship/internal/sbom"
)

func source() sbom.Source {
	return sbom.Source{
		Version: "v1.2.3", Commit: "abc",
		Build: &debug.BuildInfo{GoVersion: "go1.26.8", Deps: []*debug.Module{
			{Path: "gopkg.in/yaml.v3", Version: "v3.0.1", Sum: "h1:fxVm/GzAzEWqLHuvctI91KS9hhNmmWOoWu0XTYJS7CA="},
			{Path: "example.com/a", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/b", Version: "v2.0.0"}},
		}},
		Python: []sbom.Python{
			{Environment: "base", Name: "numpy", Version: "2.4.6", Hashes: []string{strings.Repeat("a", 64)}},
			{Environment: "triton", Name: "numpy", Version: "1.26.4"},
			{Environment: "base", Name: "PyYAML", Version: "6.0"},
			{Environment: "triton", Name: "PyYAML", Version: "6.0"},
		},
		Image: fstest.MapFS{
			"etc/os-release": {Data: []byte("ID=debian\nVERSION_CODENAME=\"bookworm\"\n")},
			"var/lib/dpkg/status": {Data: []byte("Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36-9+deb12u1\nDescription: GNU C\n a: b\n\n" +
				"Package: gone\nStatus: deinstall ok config-files\nArchitecture: amd64\nVersion: 1\n\n" +
				"Package: last\nStatus: hold ok installed\nArchitecture: all\nVersion: 1:2~3\n")},
		},
	}
}

// schema is CycloneDX 1.6, with the two schemas that it refers to.
func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	const base = "http://cyclonedx.org/schema/"
	for _, name := range []string{"bom-1.6.schema.json", "spdx.schema.json", "jsf-0.82.schema.json"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err == nil {
			err = c.AddResource(base+name, doc)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s, err := c.Compile(base + "bom-1.6.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func check(t *testing.T, s *jsonschema.Schema, text []byte) error {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(doc)
}

func TestTheBillOfMaterialsIsCycloneDX(t *testing.T) {
	s := schema(t)
	text, err := sbom.Write(source())
	if err != nil {
		t.Fatal(err)
	}
	if err := check(t, s, text); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
	// The schema is one that says no.
	if err := check(t, s, bytes.Replace(text, []byte(`"type": "library"`), []byte(`"type": "nothing"`), 1)); err == nil {
		t.Error("a component of an unknown type is valid")
	}
	var doc struct {
		Components []struct {
			PURL string `json:"purl"`
		} `json:"components"`
		Dependencies []struct {
			DependsOn []string `json:"dependsOn"`
		} `json:"dependencies"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range doc.Components {
		got = append(got, c.PURL)
	}
	want := []string{
		"pkg:deb/debian/last@1:2~3?arch=all&distro=bookworm", "pkg:deb/debian/libc6@2.36-9%2Bdeb12u1?arch=amd64&distro=bookworm",
		"pkg:golang/example.com/b@v2.0.0", "pkg:golang/gopkg.in/yaml.v3@v3.0.1", "pkg:golang/stdlib@1.26.8",
		"pkg:pypi/numpy@1.26.4", "pkg:pypi/numpy@2.4.6", "pkg:pypi/pyyaml@6.0",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("components (-want +got):\n%s", d)
	}
	if !slices.Equal(doc.Dependencies[0].DependsOn, want) {
		t.Errorf("the program depends on %v", doc.Dependencies[0].DependsOn)
	}
	again, err := sbom.Write(source())
	if err != nil || !bytes.Equal(text, again) {
		t.Errorf("a second time gives other bytes, %v", err)
	}
}

func TestAnImageWithoutDpkgIsAnError(t *testing.T) {
	s := source()
	s.Image = fstest.MapFS{}
	if _, err := sbom.Write(s); err == nil {
		t.Error("no error")
	}
	s.Image = nil
	text, err := sbom.Write(s)
	if err != nil || bytes.Contains(text, []byte("pkg:deb")) {
		t.Errorf("without an image: %v", err)
	}
}
