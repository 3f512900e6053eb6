package cli

import (
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/sbom"
	"github.com/trtship/trtship/internal/worker"
)

func newSBOMCmd(a *app) *cobra.Command {
	var image bool
	c := &cobra.Command{
		Use:   "sbom",
		Short: "Write the bill of materials of this program as CycloneDX JSON",
		Long: `sbom lists the Go modules that are linked into this program and the packages of the locked Python
environments (base and triton), as CycloneDX 1.6. With --image it adds the Debian packages of the
root file system that it runs in; the container image has the result in
/usr/share/doc/trtship/sbom.cdx.json. What an image's base installed by other means is not listed.`,
		GroupID: "setup",
		Args:    positional(0, 0),
		RunE:    func(*cobra.Command, []string) error { return a.sbom(image) },
	}
	c.Flags().BoolVar(&image, "image", false, "add the Debian packages that are installed here")
	return c
}

func (a *app) sbom(image bool) error {
	s := sbom.Source{Version: a.version, Commit: commit()}
	s.Build, _ = debug.ReadBuildInfo()
	for _, g := range []worker.Group{worker.GroupBase, worker.GroupTriton} {
		packages, err := worker.Packages(g)
		if err != nil {
			return err
		}
		for _, p := range packages {
			s.Python = append(s.Python, sbom.Python{Environment: string(g), Name: p.Name, Version: p.Version, Hashes: p.Hashes})
		}
	}
	if image {
		s.Image = os.DirFS("/")
	}
	b, err := sbom.Write(s)
	if err != nil {
		return failure.New(failure.Artifact, "%w", err)
	}
	_, err = a.io.Stdout.Write(b)
	return err
}
