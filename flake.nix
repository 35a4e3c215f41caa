{
  description = "Qualify: finds out by running it whether a combination of image, model, hardware and agent may be released";

  # Only legacyPackages.*.sources looks at nixpkgs (for its lists of mirrors). Everything else is made
  # from the pins in locks/, so a machine without a network never needs this input.
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-25.11";

  outputs =
    { self, nixpkgs }:
    let
      system = "x86_64-linux";
      atRevision =
        revision:
        import ./nix {
          inherit system revision;
          source = ./.;
        };
      qualify = atRevision (self.rev or self.dirtyRev or "unknown");
    in
    {
      packages.${system} = qualify.packages // {
        default = qualify.packages.qualify;
      };

      apps.${system} = rec {
        qualify = {
          type = "app";
          program = "${self.packages.${system}.qualify}/bin/qualify";
          meta.description = "The qualify command, from the Nix store";
        };
        default = qualify;
      };

      checks.${system} = qualify.checks;

      # `qualify image build` names the revision of a changed tree itself: not every Nix tells it.
      lib = { inherit atRevision; };

      legacyPackages.${system} = {
        inherit (qualify) pinned parts;
        sources = import ./nix/sources.nix {
          inherit system nixpkgs;
          inherit (qualify) pins sets;
        };
      };
    };
}
