import { Menu, UnstyledButton } from "@mantine/core";
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { setLanguage } from "../api/client";
import { chosenLanguage, LANGUAGES, type Language, preferredLanguage } from "../lib/language";
import { IconCheck } from "./icons";
import classes from "./LanguageMenu.module.css";

/** In which language the server says what is the matter. */
export function LanguageMenu() {
  const queries = useQueryClient();
  const [language, show] = useState<Language>(
    () => chosenLanguage() ?? preferredLanguage(navigator.languages),
  );

  function choose(next: Language) {
    setLanguage(next);
    show(next);
    void queries.invalidateQueries();
  }

  return (
    <Menu position="bottom-end" shadow="md" withinPortal>
      <Menu.Target>
        <UnstyledButton
          className={classes.button}
          aria-label={`Language of alerts: ${LANGUAGES[language]}`}
          data-testid="language"
        >
          {language === "zh" ? "中" : "EN"}
        </UnstyledButton>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Label>Language of alerts</Menu.Label>
        {(Object.keys(LANGUAGES) as Language[]).map((one) => (
          <Menu.Item
            key={one}
            onClick={() => choose(one)}
            rightSection={one === language ? <IconCheck size={14} /> : null}
            data-testid={`language-${one}`}
          >
            {LANGUAGES[one]}
          </Menu.Item>
        ))}
      </Menu.Dropdown>
    </Menu>
  );
}
